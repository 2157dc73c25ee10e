/*
 * A child of fork, or of a clone system call without a handler, has a copy of the parent's counts. It is detected by a page that the kernel
 * clears in the child (MADV_WIPEONFORK, Linux 4.14), and only when the child calls CUDA. So fork costs processes without CUDA nothing.
 */
#pragma once
#include <stdatomic.h>

enum { PROCESS_NEW, PROCESS_BEGINS, PROCESS_KNOWN };

#pragma GCC visibility push(hidden)
extern _Atomic int *_Atomic process_state;
#pragma GCC visibility pop

void process_begin(void);

/* Call it before reading anything of the process. In a child it first forgets the parent's state. */
static inline void process_check(void)
{
	_Atomic int *state = atomic_load_explicit(&process_state, memory_order_acquire);
	if (__builtin_expect(atomic_load_explicit(state, memory_order_acquire) != PROCESS_KNOWN, 0))
		process_begin();
}

/* A function that forgets the parent's state in a child. */
#define FORGET_IN_CHILD(function) static void (*const in_child_##function)(void) __attribute__((section("in_child"), used)) = function
