// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * A program of the loader's tests, with a map of each kind that the fast path needs. It counts IPv4
 * packets by their destination's network and drops those to networks that the trie does not have
 * or that were counted in another epoch.
 */
#include "russet.h"

struct prefix {
	u32 bits;
	u32 address; /* in network byte order, as `bits` counts */
};

struct flow {
	u32 network;
	u32 epoch;
	u64 packets;
};

MAP(epoch) = { BPF_MAP_TYPE_ARRAY, sizeof(u32), sizeof(u32), 1, 0 };
MAP(networks) = { BPF_MAP_TYPE_LPM_TRIE, sizeof(struct prefix), sizeof(u32), 64, BPF_F_NO_PREALLOC };
MAP(flows) = { BPF_MAP_TYPE_LRU_HASH, sizeof(u32), sizeof(struct flow), 64, 0 };
MAP(denied) = { BPF_MAP_TYPE_HASH, sizeof(u32), sizeof(u32), 64, 0 };
MAP(packets) = { BPF_MAP_TYPE_PERCPU_ARRAY, sizeof(u32), sizeof(u64), 2, 0 };

/* Where the destination is in a frame. */
#define DESTINATION (14 + 16)

static __attribute__((always_inline)) int judge(struct __sk_buff *skb, u32 epoch_now)
{
	struct prefix prefix = { .bits = 32 };
	struct flow flow = { .epoch = epoch_now, .packets = 1 };
	struct flow *known;
	u32 *network;

	if (bpf_skb_load_bytes(skb, DESTINATION, &prefix.address, sizeof(prefix.address)))
		return TC_ACT_SHOT;
	network = bpf_map_lookup_elem(&networks, &prefix);
	if (!network)
		return TC_ACT_SHOT;
	if (bpf_map_lookup_elem(&denied, &prefix.address))
		return TC_ACT_SHOT;
	known = bpf_map_lookup_elem(&flows, &prefix.address);
	if (known) {
		if (known->epoch != epoch_now)
			return TC_ACT_SHOT;
		known->packets++;
		return TC_ACT_OK;
	}
	flow.network = *network;
	bpf_map_update_elem(&flows, &prefix.address, &flow, 0);
	return TC_ACT_OK;
}

TC_PROGRAM test_count(struct __sk_buff *skb)
{
	u32 zero = 0;
	u32 *epoch_now = bpf_map_lookup_elem(&epoch, &zero);
	u64 *count;
	u32 slot;
	int verdict;

	if (!epoch_now || skb->protocol != ETH_P_IP)
		return TC_ACT_OK;
	verdict = judge(skb, *epoch_now);
	slot = verdict == TC_ACT_SHOT;
	count = bpf_map_lookup_elem(&packets, &slot);
	if (count)
		*count += 1;
	skb->mark = *epoch_now;
	return verdict;
}
