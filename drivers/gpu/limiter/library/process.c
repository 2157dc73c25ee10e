#define _GNU_SOURCE
#include "process.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

/* The functions of FORGET_IN_CHILD. */
extern void (*const __start_in_child[])(void) __attribute__((visibility("hidden")));
extern void (*const __stop_in_child[])(void) __attribute__((visibility("hidden")));

static _Atomic int before; /* PROCESS_NEW while there is no page */
_Atomic int *_Atomic process_state = &before;
static atomic_bool used; /* by this process, or by the one that it is a child of */

/* The handler for kernels that do not clear the page. Children of a bare clone are not detected then. */
static void forked(void)
{
	atomic_store(atomic_load(&process_state), PROCESS_NEW);
}

/* Makes the page; on lack of memory it uses a word of the library. */
static _Atomic int *make(void)
{
	static _Atomic int word;
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	_Atomic int *made = page == MAP_FAILED ? &word : page, *none = &before;
	bool wiped = page != MAP_FAILED && madvise(page, 4096, MADV_WIPEONFORK) == 0;
	if (!atomic_compare_exchange_strong(&process_state, &none, made)) {
		if (page != MAP_FAILED)
			munmap(page, 4096);
		return none; /* another thread's */
	}
	if (!wiped)
		pthread_atfork(NULL, NULL, forked);
	return made;
}

void process_begin(void)
{
	_Atomic int *state = atomic_load(&process_state);
	int was = PROCESS_NEW;
	if (state == &before)
		state = make();
	if (!atomic_compare_exchange_strong(state, &was, PROCESS_BEGINS)) {
		while (atomic_load(state) != PROCESS_KNOWN)
			sched_yield(); /* for the thread that does it */
		return;
	}
	if (atomic_exchange(&used, true))
		for (size_t i = 0; &__start_in_child[i] < __stop_in_child; i++)
			__start_in_child[i]();
	atomic_store(state, PROCESS_KNOWN);
}
