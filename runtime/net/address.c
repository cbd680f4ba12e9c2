/* address.c: addresses as text: "1.2.3.4:80", "[::1]:80", "unix:/path", "unix:@abstract". */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include <weir/socket.h>

/* The port behind the last colon; -EINVAL unless it is a decimal number of 0 to 65535. */
static int parse_port(const char *text)
{
    int port = 0;
    size_t length = strlen(text);

    if (length == 0 || length > 5)
        return -EINVAL;
    for (const char *c = text; *c; c++) {
        if (*c < '0' || *c > '9')
            return -EINVAL;
        port = port * 10 + (*c - '0');
    }
    return port <= 65535 ? port : -EINVAL;
}

static int parse_unix(weir_address *address, const char *path)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    size_t length = strlen(path);

    if (length == 0 || length >= sizeof name.sun_path || (path[0] == '@' && length == 1))
        return -EINVAL;
    memcpy(name.sun_path, path, length);
    address->length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + 1);
    if (path[0] == '@') {
        name.sun_path[0] = 0;
        address->length--;
    }
    memcpy(&address->storage, &name, sizeof name);
    return 0;
}

static int parse_host(weir_address *address, const char *host, int port)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};

    if (inet_pton(AF_INET, host, &v4.sin_addr) == 1) {
        memcpy(&address->storage, &v4, sizeof v4);
        address->length = sizeof v4;
        return 0;
    }
    size_t length = strlen(host);
    char bare[INET6_ADDRSTRLEN];
    if (length < 4 || length - 2 >= sizeof bare || host[0] != '[' || host[length - 1] != ']')
        return -EINVAL;
    memcpy(bare, host + 1, length - 2);
    bare[length - 2] = 0;
    if (inet_pton(AF_INET6, bare, &v6.sin6_addr) != 1)
        return -EINVAL;
    memcpy(&address->storage, &v6, sizeof v6);
    address->length = sizeof v6;
    return 0;
}

int weir_address_parse(weir_address *ret_address, const char *text)
{
    weir_address address;
    char host[INET6_ADDRSTRLEN + 2];
    int saved = errno, r;

    if (!ret_address || !text)
        return -EINVAL;
    memset(&address, 0, sizeof address);
    if (strncmp(text, "unix:", 5) == 0) {
        r = parse_unix(&address, text + 5);
    } else {
        const char *colon = strrchr(text, ':');
        size_t length = colon ? (size_t)(colon - text) : sizeof host;
        int port = colon ? parse_port(colon + 1) : -EINVAL;
        if (port < 0 || length == 0 || length >= sizeof host)
            return -EINVAL;
        memcpy(host, text, length);
        host[length] = 0;
        r = parse_host(&address, host, port);
    }
    errno = saved;
    if (r == 0)
        *ret_address = address;
    return r;
}

static int format_unix(const weir_address *address, char *buffer, size_t size)
{
    const struct sockaddr_un *name = (const struct sockaddr_un *)(const void *)&address->storage;
    size_t length = address->length > offsetof(struct sockaddr_un, sun_path)
                        ? address->length - offsetof(struct sockaddr_un, sun_path)
                        : 0;

    if (length > sizeof name->sun_path)
        return -EINVAL;
    if (length > 0 && name->sun_path[0] == 0)
        return snprintf(buffer, size, "unix:@%.*s", (int)length - 1, name->sun_path + 1);
    return snprintf(buffer, size, "unix:%.*s", (int)length, name->sun_path);
}

int weir_address_format(const weir_address *address, char *buffer, size_t size)
{
    char host[INET6_ADDRSTRLEN];
    int saved = errno, r;

    if (!address || !buffer)
        return -EINVAL;
    if (address->storage.ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)&address->storage;
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
        r = snprintf(buffer, size, "%s:%u", host, (unsigned)ntohs(v4->sin_port));
    } else if (address->storage.ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 =
            (const struct sockaddr_in6 *)(const void *)&address->storage;
        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
        r = snprintf(buffer, size, "[%s]:%u", host, (unsigned)ntohs(v6->sin6_port));
    } else if (address->storage.ss_family == AF_UNIX) {
        r = format_unix(address, buffer, size);
    } else {
        r = -EAFNOSUPPORT;
    }
    errno = saved;
    return r >= 0 && (size_t)r >= size ? -ENOSPC : r;
}
