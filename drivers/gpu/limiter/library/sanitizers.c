/*
 * AddressSanitizer's runtime, if it is a library, ends a program in which another library was loaded before it, because its functions might
 * not come first. Every preloaded library is. This library replaces no function of the runtime but dlsym, and both call the next one. So it
 * disables the check by the function from which the runtime reads its options. A program's own such function, and ASAN_OPTIONS, take
 * precedence.
 */
#include "hooks.h"

const char *__asan_default_options(void);

EXPORT const char *__asan_default_options(void)
{
	return "verify_asan_link_order=0";
}
