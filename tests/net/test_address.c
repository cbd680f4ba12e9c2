/* Addresses as text, both ways. */
#include <errno.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/un.h>

#include <weir/socket.h>

#include "support/test.h"

Test(address, text_comes_back_as_it_went_in)
{
    static const char *const texts[] = {
        "127.0.0.1:80",     "0.0.0.0:0",        "255.255.255.255:65535", "[::1]:80",
        "[::]:0",           "[2001:db8::1]:1",  "[::ffff:1.2.3.4]:443",  "unix:/run/weir.sock",
        "unix:relative",    "unix:@abstract",   "unix:@a b:c]",          "unix:/with:colon",
    };

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char text[WEIR_ADDRESS_TEXT_MAX];
        weir_address address;
        int r = weir_address_parse(&address, texts[i]);
        cr_assert_eq(r, 0, "%s: %d", texts[i], r);
        int length = weir_address_format(&address, text, sizeof text);
        cr_assert_eq(length, (int)strlen(texts[i]), "%s: %d", texts[i], length);
        cr_assert_str_eq(text, texts[i]);
    }
}

Test(address, what_is_malformed_is_refused_and_writes_nothing)
{
    static const char *const texts[] = {
        "",            ":",              ":80",          "127.0.0.1",   "127.0.0.1:",
        "127.0.0.1:x", "127.0.0.1:65536", "1.2.3:80",    "1.2.3.4:-1",  "1.2.3.4: 80",
        "1.2.3.4:80 ", "1.2.3.4:+80",    "::1:80",       "[::1]80",     "[::1]",
        "[::1]:",      "[]:80",          "[::1:80",      "x::1]:80",    "[1.2.3.4]:1",
        "localhost:1", "unix:",          "unix:@",       "UNIX:/x",     "[::1%lo]:1",
        "[::g]:1",     "1.2.3.4:000080", "01.2.3.4:80x",
    };
    weir_address address, before;

    memset(&address, 0x5a, sizeof address);
    before = address;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        errno = 77;
        cr_assert_eq(weir_address_parse(&address, texts[i]), -EINVAL, "'%s'", texts[i]);
        cr_assert_eq(errno, 77, "errno is left alone");
        cr_assert_arr_eq(&address, &before, sizeof address);
    }
    cr_assert_eq(weir_address_parse(NULL, "127.0.0.1:80"), -EINVAL);
    cr_assert_eq(weir_address_parse(&address, NULL), -EINVAL);
}

Test(address, a_path_that_fills_the_room_is_taken_and_a_longer_one_is_not)
{
    enum { ROOM = sizeof(((struct sockaddr_un *)NULL)->sun_path) };
    char text[200], back[WEIR_ADDRESS_TEXT_MAX];
    weir_address address;

    memset(text, 'p', sizeof text);
    memcpy(text, "unix:/", 6);
    text[5 + ROOM - 1] = 0;
    cr_assert_eq(weir_address_parse(&address, text), 0);
    cr_assert_eq(weir_address_format(&address, back, sizeof back), 5 + ROOM - 1);
    cr_assert_str_eq(back, text);
    text[5 + ROOM - 1] = 'p';
    text[5 + ROOM] = 0;
    cr_assert_eq(weir_address_parse(&address, text), -EINVAL);
}

Test(address, too_little_room_for_the_text_is_told)
{
    weir_address address;
    char text[32];

    cr_assert_eq(weir_address_parse(&address, "127.0.0.1:80"), 0);
    cr_assert_eq(weir_address_format(&address, text, 12), -ENOSPC);
    cr_assert_eq(weir_address_format(&address, text, 13), 12);
    cr_assert_eq(weir_address_format(&address, text, 0), -ENOSPC);
    cr_assert_eq(weir_address_format(&address, NULL, 13), -EINVAL);
    cr_assert_eq(weir_address_format(NULL, text, 13), -EINVAL);
    address.storage.ss_family = AF_APPLETALK;
    cr_assert_eq(weir_address_format(&address, text, sizeof text), -EAFNOSUPPORT);
}

Test(address, a_unix_socket_without_a_name_has_an_empty_one)
{
    weir_address address = {.length = offsetof(struct sockaddr_un, sun_path)};
    char text[16];

    address.storage.ss_family = AF_UNIX;
    cr_assert_eq(weir_address_format(&address, text, sizeof text), 5);
    cr_assert_str_eq(text, "unix:");
}
