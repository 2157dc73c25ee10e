/*
 * The library is loaded into whatever image a pod has, and a loader ends a program whose preloaded library asks for a newer glibc. So it asks
 * for 2.17 at most, which every supported CUDA needs. Each function here has an older version that does the same; before 2.34 dlopen and dlvsym
 * stand in libdl.so.2, which is why the library is linked against that, too.
 */
#pragma once

#if defined __x86_64__
#define OLDEST "GLIBC_2.2.5"
#elif defined __aarch64__
#define OLDEST "GLIBC_2.17"
#else
#error "the oldest version of glibc's functions is not known for this architecture"
#endif

__asm__(".symver dlopen, dlopen@" OLDEST);
__asm__(".symver dlvsym, dlvsym@" OLDEST);
