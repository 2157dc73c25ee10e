/*
 * The library is loaded into any pod's image, and a loader ends a program whose preloaded library needs a newer glibc. So it needs at most
 * 2.17, which every supported CUDA needs too. Each function here has an older version with the same behaviour. Before 2.34 dlopen and
 * dlvsym are in libdl.so.2, so the library is also linked against that.
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
