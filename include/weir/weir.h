/* weir.h: everything. */
#ifndef WEIR_WEIR_H
#define WEIR_WEIR_H

#include <weir/base.h>
#include <weir/buffer.h>
#include <weir/log.h>
#include <weir/runtime.h>
#include <weir/socket.h>
#include <weir/stats.h>
#include <weir/timer.h>
#include <weir/watch.h>
#include <weir/work.h>

#endif
