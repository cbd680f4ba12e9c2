/* test_timer.c: the deadlines of a poller against a model: a plain table that is searched. */
#include <pthread.h>

#include "dispatch/timer.h"
#include "support/stress.h"
#include "support/test.h"

#define AWAKE INT64_MIN

struct item {
    struct weir_deadline_ deadline;     /* first: expire() is given its address */
    weir_time due;                      /* the model: WEIR_NEVER when it is not armed */
    unsigned expired, dropped;
};

/* What expire() saw, in order. */
static struct item *seen[200000];
static unsigned seen_count;

static void note(struct weir_deadline_ *deadline)
{
    struct item *item = (struct item *)(void *)deadline;

    item->expired++;
    if (seen_count < sizeof(seen) / sizeof(seen[0]))
        seen[seen_count++] = item;
}

static void note_drop(struct weir_deadline_ *deadline)
{
    ((struct item *)(void *)deadline)->dropped++;
}

static void init_items(struct item *items, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        items[i] = (struct item){ .due = WEIR_NEVER };
        wr_deadline_init(&items[i].deadline, note);
    }
    seen_count = 0;
}

Test(timer, expires_when_due_and_not_before, .timeout = 10)
{
    struct wr_timers timers;
    struct item item;

    wr_timers_init(&timers);
    init_items(&item, 1);
    cr_assert_not(wr_timers_armed(&timers, &item.deadline));
    wr_timers_set(&timers, &item.deadline, 1000);
    cr_assert(wr_timers_armed(&timers, &item.deadline));
    cr_assert_eq(wr_timers_expire(&timers, 999, 10), 0);
    cr_assert_eq(wr_timers_expire(&timers, 1000, 10), 1);
    cr_assert_eq(item.expired, 1);
    cr_assert_not(wr_timers_armed(&timers, &item.deadline));
    cr_assert_eq(wr_timers_expire(&timers, 5000, 10), 0);
}

Test(timer, moved_to_later_it_hangs_where_it_was_and_is_not_early, .timeout = 10)
{
    struct wr_timers timers;
    struct item item;
    bool ring = true;

    wr_timers_init(&timers);
    init_items(&item, 1);
    wr_timers_set(&timers, &item.deadline, 1000);
    cr_assert_eq(wr_timers_sleep(&timers), 1000);
    cr_assert_not(wr_timers_set(&timers, &item.deadline, 2000));
    cr_assert(wr_timers_move(&timers, &item.deadline, 3000, &ring));
    cr_assert_not(ring);
    cr_assert_eq(item.deadline.key_, 1000, "a move to later must not touch the heap");
    cr_assert_eq(wr_timers_expire(&timers, 1500, 10), 0);
    cr_assert_eq(wr_timers_sleep(&timers), 3000);
    cr_assert_not(wr_timers_set(&timers, &item.deadline, 3500));
    cr_assert(wr_timers_set(&timers, &item.deadline, 2500),
              "to earlier: the poller sleeps too long");
    cr_assert_eq(wr_timers_expire(&timers, 2500, 10), 1);
}

Test(timer, what_was_due_is_taken_once_and_not_after_a_move, .timeout = 10)
{
    struct wr_timers timers;
    struct item item;

    wr_timers_init(&timers);
    init_items(&item, 1);
    cr_assert_not(wr_timers_take_due(&timers, &item.deadline, 5000), "never set");
    wr_timers_set(&timers, &item.deadline, 1000);
    cr_assert_not(wr_timers_take_due(&timers, &item.deadline, 5000), "its expiry is to come");
    cr_assert_eq(wr_timers_expire(&timers, 1000, 10), 1);
    cr_assert(wr_timers_take_due(&timers, &item.deadline, 1000));
    cr_assert_not(wr_timers_take_due(&timers, &item.deadline, 1000), "once");
    wr_timers_set(&timers, &item.deadline, 2000);
    cr_assert_eq(wr_timers_expire(&timers, 2000, 10), 1);
    wr_timers_set(&timers, &item.deadline, 3000);
    cr_assert_not(wr_timers_take_due(&timers, &item.deadline, 2500), "moved since");
    cr_assert_eq(wr_timers_expire(&timers, 3000, 10), 1);
    wr_timers_set(&timers, &item.deadline, WEIR_NEVER);
    cr_assert_not(wr_timers_take_due(&timers, &item.deadline, 4000), "taken back since");
}

Test(timer, a_move_does_not_arm, .timeout = 10)
{
    struct wr_timers timers;
    struct item item;
    bool ring = true;

    wr_timers_init(&timers);
    init_items(&item, 1);
    cr_assert_not(wr_timers_move(&timers, &item.deadline, 1000, &ring));
    cr_assert(ring, "written without success");
    cr_assert_eq(wr_timers_expire(&timers, 5000, 10), 0);
}

Test(timer, the_doorbell_is_asked_for_once_and_only_while_it_sleeps, .timeout = 10)
{
    struct wr_timers timers;
    struct item items[4];

    wr_timers_init(&timers);
    init_items(items, 4);
    cr_assert_not(wr_timers_set(&timers, &items[0].deadline, 1000), "it is not asleep yet");
    cr_assert_eq(wr_timers_sleep(&timers), 1000);
    cr_assert_not(wr_timers_set(&timers, &items[1].deadline, 1000));
    cr_assert(wr_timers_set(&timers, &items[2].deadline, 500));
    cr_assert_not(wr_timers_set(&timers, &items[3].deadline, 700), "the ring that is owed will do");
    cr_assert(wr_timers_set(&timers, &items[3].deadline, 300));
    cr_assert_eq(wr_timers_expire(&timers, 200, 10), 0);
    cr_assert_not(wr_timers_set(&timers, &items[3].deadline, 100), "it is awake and will look");
    cr_assert_eq(wr_timers_sleep(&timers), 100);
    wr_timers_awake(&timers);
    cr_assert_not(wr_timers_set(&timers, &items[3].deadline, 90), "awake, though nothing was due");
    cr_assert_eq(wr_timers_sleep(&timers), 90);
    cr_assert(wr_timers_set(&timers, &items[3].deadline, 80));
    cr_assert_eq(wr_timers_sleep(&timers), 80);
    for (unsigned i = 0; i < 4; i++)
        cr_assert(wr_timers_cancel(&timers, &items[i].deadline));
    cr_assert_eq(wr_timers_sleep(&timers), WEIR_NEVER);
    cr_assert(wr_timers_set(&timers, &items[0].deadline, WEIR_NEVER - 1));
}

Test(timer, a_bound_leaves_the_rest_for_the_next_turn, .timeout = 10)
{
    struct wr_timers timers;
    static struct item items[10];

    wr_timers_init(&timers);
    init_items(items, 10);
    for (unsigned i = 0; i < 10; i++)
        wr_timers_set(&timers, &items[i].deadline, 100 + i);
    cr_assert_eq(wr_timers_expire(&timers, 1000, 4), 4);
    cr_assert_leq(wr_timers_sleep(&timers), 1000, "it must not sleep: six are due");
    cr_assert_eq(wr_timers_expire(&timers, 1000, 4), 4);
    cr_assert_eq(wr_timers_expire(&timers, 1000, 4), 2);
    /* Hanging anew is work, too: a thousand moved ones must not hold the lock in one go. */
    for (unsigned i = 0; i < 10; i++) {
        wr_timers_set(&timers, &items[i].deadline, 2000);
        wr_timers_set(&timers, &items[i].deadline, 4000);
    }
    cr_assert_eq(wr_timers_expire(&timers, 3000, 4), 0);
    cr_assert_leq(wr_timers_sleep(&timers), 3000);
    cr_assert_eq(wr_timers_expire(&timers, 3000, 6), 0);
    cr_assert_eq(wr_timers_sleep(&timers), 4000);
    cr_assert_eq(wr_timers_expire(&timers, 4000, 10), 10);
}

Test(timer, closing_drops_all_and_refuses_from_then_on, .timeout = 10)
{
    struct wr_timers timers;
    static struct item items[20];

    wr_timers_init(&timers);
    init_items(items, 20);
    for (unsigned i = 0; i < 20; i++)
        wr_timers_set(&timers, &items[i].deadline, (weir_time)(i * 7919 % 20));
    cr_assert_not(wr_timers_closed(&timers));
    wr_timers_close(&timers, note_drop);
    cr_assert(wr_timers_closed(&timers));
    for (unsigned i = 0; i < 20; i++) {
        cr_assert_eq(items[i].dropped, 1);
        cr_assert_not(wr_timers_armed(&timers, &items[i].deadline));
        cr_assert_not(wr_timers_cancel(&timers, &items[i].deadline));
        cr_assert_not(wr_timers_set(&timers, &items[i].deadline, 1));
    }
    cr_assert_eq(wr_timers_expire(&timers, 1000, 100), 0);
    cr_assert_eq(wr_timers_sleep(&timers), WEIR_NEVER);
}

/* ---- against the model ----------------------------------------------------------------------- */

#define ITEMS 300

struct model {
    struct wr_timers timers;
    struct item items[ITEMS];
    struct support_random random;
    weir_time now;
    weir_time wake;                     /* until when the poller sleeps; AWAKE */
};

static weir_time any_time(struct model *model)
{
    /* Around now, few distinct values: ties, times that have passed, far ones. */
    return model->now - 20 + (weir_time)support_below(&model->random, 4) *
           (weir_time)support_below(&model->random, 60);
}

static void model_set(struct model *model, struct item *item, bool move)
{
    weir_time when = support_below(&model->random, 12) == 0 ? WEIR_NEVER : any_time(model);
    bool was_armed = item->due != WEIR_NEVER;
    bool ring = false;

    if (move) {
        bool moved = wr_timers_move(&model->timers, &item->deadline, when, &ring);
        cr_assert_eq(moved, was_armed);
        if (!moved)
            return;
    } else {
        ring = wr_timers_set(&model->timers, &item->deadline, when);
    }
    item->due = when;
    bool oversleeps = model->wake != AWAKE && when < model->wake;
    cr_assert_eq(ring, oversleeps, "due %lld, asleep until %lld", (long long)when,
                 (long long)model->wake);
    if (ring)
        model->wake = when;
}

static void model_expire(struct model *model)
{
    unsigned max = support_below(&model->random, 3) == 0 ? 5 : 2 * ITEMS;
    unsigned due = 0;

    model->now += (weir_time)support_below(&model->random, 15);
    for (unsigned i = 0; i < ITEMS; i++)
        due += model->items[i].due <= model->now;
    seen_count = 0;
    unsigned expired = wr_timers_expire(&model->timers, model->now, max);
    model->wake = AWAKE;
    cr_assert_eq(expired, seen_count);
    if (max > ITEMS)
        cr_assert_eq(expired, due, "now %lld", (long long)model->now);
    else
        cr_assert_leq(expired, due < max ? due : max);
    for (unsigned i = 0; i < seen_count; i++) {
        cr_assert_leq(seen[i]->due, model->now, "early");
        cr_assert(i == 0 || seen[i - 1]->deadline.key_ <= seen[i]->deadline.key_, "out of order");
        seen[i]->due = WEIR_NEVER;
        cr_assert_not(wr_timers_armed(&model->timers, &seen[i]->deadline));
    }
}

static void model_sleep(struct model *model)
{
    weir_time first = WEIR_NEVER;

    for (unsigned i = 0; i < ITEMS; i++) {
        if (model->items[i].due < first)
            first = model->items[i].due;
    }
    model->wake = wr_timers_sleep(&model->timers);
    cr_assert_leq(model->wake, first, "it oversleeps");
    if (first == WEIR_NEVER)
        cr_assert_eq(model->wake, WEIR_NEVER);
}

Test(timer, does_what_a_searched_table_does, .timeout = 100)
{
    static struct model model;
    unsigned rounds = support_rounds(300000);

    wr_timers_init(&model.timers);
    init_items(model.items, ITEMS);
    model.random = support_random(support_seed(), 0);
    model.wake = AWAKE;
    model.now = 1000;
    for (unsigned round = 0; round < rounds; round++) {
        struct item *item = &model.items[support_below(&model.random, ITEMS)];
        switch (support_below(&model.random, 16)) {
        case 0:
            model_expire(&model);
            break;
        case 1:
            model_sleep(&model);
            break;
        case 2:
        case 3:
            cr_assert_eq(wr_timers_cancel(&model.timers, &item->deadline), item->due != WEIR_NEVER);
            item->due = WEIR_NEVER;
            break;
        case 4:
        case 5:
            model_set(&model, item, true);
            break;
        case 6:
            cr_assert_eq(wr_timers_armed(&model.timers, &item->deadline), item->due != WEIR_NEVER);
            break;
        default:
            model_set(&model, item, false);
        }
    }
}

/* ---- many ------------------------------------------------------------------------------------ */

#define MANY 100000

/* On a small stack: no shape of the heap may recurse. */
static void *a_hundred_thousand(void *unused)
{
    static struct item items[MANY];
    static struct wr_timers timers;
    struct support_random random = support_random(support_seed(), 1);

    (void)unused;
    for (int shape = 0; shape < 3; shape++) {
        unsigned cancelled = 0, expired = 0, got;
        wr_timers_init(&timers);
        init_items(items, MANY);
        for (unsigned i = 0; i < MANY; i++) {
            weir_time when = shape == 0   ? (weir_time)support_below(&random, 1000000)
                             : shape == 1 ? (weir_time)i
                                          : (weir_time)(MANY - i);
            wr_timers_set(&timers, &items[i].deadline, when);
        }
        for (unsigned i = 0; i < MANY; i += 2)
            cancelled += wr_timers_cancel(&timers, &items[i].deadline);
        cr_assert_eq(cancelled, MANY / 2);
        while ((got = wr_timers_expire(&timers, 1000000, 1000)) > 0)
            expired += got;
        cr_assert_eq(expired, MANY / 2);
        for (unsigned i = 0; i < MANY; i++)
            cr_assert_eq(items[i].expired, i % 2);
        for (unsigned i = 1; i < seen_count; i++)
            cr_assert_leq(seen[i - 1]->deadline.when_, seen[i]->deadline.when_);
        cr_assert_eq(wr_timers_sleep(&timers), WEIR_NEVER);
    }
    return NULL;
}

Test(timer, a_hundred_thousand_come_in_order_on_a_small_stack, .timeout = 100)
{
    pthread_attr_t attributes;
    pthread_t thread;

    support_seed();
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 * 1024);
    cr_assert_eq(pthread_create(&thread, &attributes, a_hundred_thousand, NULL), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
}

/* ---- threads --------------------------------------------------------------------------------- */

#define ARMERS 3

struct duel {
    struct weir_deadline_ deadline;
    unsigned expired;                   /* written by expire(), read after cancel(): no atomics */
};

static struct wr_timers duel_timers;
static _Atomic weir_time duel_clock;
static _Atomic bool duel_over;

static void count_duel(struct weir_deadline_ *deadline)
{
    ((struct duel *)(void *)deadline)->expired++;
}

static void *arm_and_cancel(void *argument)
{
    unsigned number = *(unsigned *)argument;
    struct support_random random = support_random(support_seed(), number);
    struct duel duel = { .expired = 0 };
    unsigned rounds = support_rounds(20000);
    unsigned expected = 0;

    wr_deadline_init(&duel.deadline, count_duel);
    for (unsigned round = 0; round < rounds; round++) {
        wr_timers_set(&duel_timers, &duel.deadline, duel_clock + support_below(&random, 8));
        support_yield(&random);
        /* After cancel() no expire() is running: reading `expired` is no race, and each arming
         * ended one way or the other. */
        if (!wr_timers_cancel(&duel_timers, &duel.deadline))
            expected++;
        cr_assert_eq(duel.expired, expected, "round %u", round);
    }
    return NULL;
}

static void *expire_on(void *unused)
{
    (void)unused;
    while (!duel_over) {
        wr_timers_expire(&duel_timers, ++duel_clock, 8);
        wr_timers_sleep(&duel_timers);
    }
    return NULL;
}

Test(timer, each_arming_ends_in_expiry_or_cancel, .timeout = 100)
{
    pthread_t armers[ARMERS], poller;
    unsigned numbers[ARMERS];

    wr_timers_init(&duel_timers);
    support_seed();
    pthread_create(&poller, NULL, expire_on, NULL);
    for (unsigned i = 0; i < ARMERS; i++) {
        numbers[i] = i;
        pthread_create(&armers[i], NULL, arm_and_cancel, &numbers[i]);
    }
    for (unsigned i = 0; i < ARMERS; i++)
        pthread_join(armers[i], NULL);
    duel_over = true;
    pthread_join(poller, NULL);
}
