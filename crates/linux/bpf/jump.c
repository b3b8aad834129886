// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Is attached in the place of another program where the kernel has no TCX: a filter of `clsact` stays when the process
 * ends that has made it, and the kernel empties a table of programs that no process has open.
 */
#include "russet.h"

MAP(targets) = { BPF_MAP_TYPE_PROG_ARRAY, sizeof(u32), sizeof(u32), 1, 0 };

TC_PROGRAM jump(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &targets, 0);
	return TC_ACT_UNSPEC;
}
