/* fault.c: the one variable behind fault.h. */
#include "os/fault.h"

#ifdef WEIR_FAULTS
int (*wr_fault_hook)(enum wr_fault_call call);
#endif
