/* planted_race.c: a data race on purpose: the build whose sanitizer does not report it is blind. */
#include <pthread.h>

#include "support/test.h"

static int shared;

static void *add_one(void *context)
{
    shared++;
    return context;
}

Test(planted, race, .timeout = 30)
{
    pthread_t thread;

    cr_assert_eq(pthread_create(&thread, NULL, add_one, NULL), 0);
    shared++;
    pthread_join(thread, NULL);
}
