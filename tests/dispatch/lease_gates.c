#include "lease_gates.h"

#include <errno.h>

#include "os/fault.h"

#define FREELY INT32_MAX

struct gate gates[WR_LEASE_SEAMS], parking;
_Atomic unsigned looks[4];

static void pass(struct gate *gate)
{
    atomic_fetch_add(&gate->come, 1);
    atomic_fetch_add(&gate->waiting, 1);
    for (;;) {
        int tickets = atomic_load(&gate->tickets);
        if (tickets == FREELY)
            break;
        if (tickets > 0 && atomic_compare_exchange_weak(&gate->tickets, &tickets, tickets - 1))
            break;
        nanosleep(&(struct timespec) {.tv_nsec = 50000}, NULL);
    }
    atomic_fetch_sub(&gate->waiting, 1);
}

static void on_seam(enum wr_lease_seam seam, struct wr_poller *poller)
{
    if (seam == WR_LEASE_SEAM_LOOK)
        atomic_fetch_add(&looks[poller->index], 1);
    pass(&gates[seam]);
}

static void on_pool_seam(enum wr_pool_seam seam)
{
    if (seam == WR_SEAM_BEFORE_PARK)
        pass(&parking);
}

void hold(struct gate *gate)
{
    atomic_store(&gate->tickets, 0);
}

void let_all(struct gate *gate)
{
    atomic_store(&gate->tickets, FREELY);
}

void await_somebody_at(struct gate *gate)
{
    cr_assert(RIG_UNTIL(atomic_load(&gate->waiting) > 0, rig_patience(2000)), "nobody has come");
}

void let_one(struct gate *gate)
{
    await_somebody_at(gate);
    atomic_fetch_add(&gate->tickets, 1);
    cr_assert(RIG_UNTIL(atomic_load(&gate->tickets) == 0, rig_patience(2000)));
}

void one_look(void)
{
    struct gate *gate = &gates[WR_LEASE_SEAM_LOOK];
    unsigned come = atomic_load(&gate->come);

    let_one(gate);
    cr_assert(RIG_UNTIL(atomic_load(&gate->come) > come, rig_patience(2000)));
}

void hook(void)
{
    for (unsigned i = 0; i < WR_LEASE_SEAMS; i++)
        let_all(&gates[i]);
    let_all(&parking);
    wr_lease_seam_hook = on_seam;
    wr_pool_seam_hook = on_pool_seam;
}

void stop_guarantor(struct rig *rig)
{
    hold(&gates[WR_LEASE_SEAM_LOOK]);
    wr_guard_wake(&rig->runtime->pollers[0]);
    await_somebody_at(&gates[WR_LEASE_SEAM_LOOK]);
}

static int no_timer(enum wr_fault_call call)
{
    return call == WR_FAULT_TIMERFD ? EPERM : 0;
}

void open_sleeping(struct rig *rig, uint32_t how)
{
    hook();
    /* It stays: threads look at it from here on. */
    wr_fault_hook = how == ASLEEP ? no_timer : NULL;
    lease_open(rig, 1, 1, 0);
}

void hold_asleep(struct rig *rig, uint32_t how)
{
    struct gate *gate = &gates[WR_LEASE_SEAM_ASLEEP];

    hold(gate);
    wr_guard_wake(&rig->runtime->pollers[0]);
    await_somebody_at(gate);
    if (guard_word(rig) != how) /* it was on its way there when it was woken */
        let_one(gate);
    cr_assert(RIG_UNTIL(guard_word(rig) == how, rig_patience(2000)), "guard %u", guard_word(rig));
    await_somebody_at(gate);
}

uint32_t guard_word(struct rig *rig)
{
    return atomic_load(&rig->runtime->pollers[0].guard);
}

void close_all(struct rig *rig)
{
    for (unsigned i = 0; i < WR_LEASE_SEAMS; i++)
        let_all(&gates[i]);
    let_all(&parking);
    lease_close(rig);
    wr_lease_seam_hook = NULL;
    wr_pool_seam_hook = NULL;
}
