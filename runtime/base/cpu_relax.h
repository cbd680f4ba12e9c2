/* cpu_relax.h: what a bounded spin does between two looks; the size of a cache line. */
#ifndef WR_BASE_CPU_RELAX_H
#define WR_BASE_CPU_RELAX_H

#define WR_CACHE_LINE 64
#define WR_ALIGN_LINE _Alignas(WR_CACHE_LINE)

static inline void wr_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

#endif
