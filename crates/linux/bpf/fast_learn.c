// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Runs on packets that leave the kernel's path: to a pod, into the tunnel or to the uplink. A packet
 * that has come through it unchanged makes its flow known, and one that accepts a connection that of the
 * packet that has asked for it, too. It changes no packet.
 */
#include "fast.h"

/* Makes a direction known, of which a packet has left the kernel's path through `out_ifindex`. */
INLINE void learn(const struct pending_key *key, const struct pending *note, u32 out_ifindex)
{
	u32 *place = bpf_map_lookup_elem(&places, &key->ifindex);
	struct flow *known = bpf_map_lookup_elem(&flows, &key->tuple);
	struct flow flow = {};

	flow.epoch = note->epoch;
	flow.ifindex = key->ifindex;
	flow.out_ifindex = out_ifindex;
	flow.node = note->node;
	flow.through_kernel_ns = bpf_ktime_get_ns();
	if (place)
		flow.from_place = *place;
	/* Counts that another processor adds meanwhile are kept. */
	if (known && known->epoch == flow.epoch && known->ifindex == flow.ifindex &&
	    known->out_ifindex == flow.out_ifindex && known->node == flow.node &&
	    known->from_place == flow.from_place) {
		known->through_kernel_ns = flow.through_kernel_ns;
		return;
	}
	if (known) {
		flow.answered_epoch = known->answered_epoch;
		flow.packets = known->packets;
		flow.bytes = known->bytes;
	}
	bpf_map_update_elem(&flows, &key->tuple, &flow, 0);
}

/* Makes the direction known that has asked for the connection of an answer, if the kernel let it pass in this epoch. */
INLINE void learn_asking(const struct pending_key *answer, u32 ifindex, u32 epoch)
{
	struct pending_key key = { .ifindex = ifindex };
	struct pending *found;
	struct pending note;

	reverse(&answer->tuple, &key.tuple);
	found = bpf_map_lookup_elem(&pending, &key);
	if (!found || !found->out_ifindex)
		return;
	note = *found;
	bpf_map_delete_elem(&pending, &key);
	if (note.epoch == epoch)
		learn(&key, &note, note.out_ifindex);
}

TC_PROGRAM fast_learn(struct __sk_buff *skb)
{
	struct ethernet *ethernet = (void *)(u64)skb->data;
	void *ip = ethernet + 1;
	u32 epoch = setting(SETTING_EPOCH);
	enum stage stage = STAGE_WITHIN;
	struct pending_key key = {};
	struct pending *found;
	struct pending note;

	if (!epoch || !skb->ingress_ifindex || ip > (void *)(u64)skb->data_end)
		return TC_ACT_UNSPEC;
	if (!read_packet(skb, ip, skb->len, skb->protocol, &key.tuple, &stage) || stage == STAGE_ENDS)
		return TC_ACT_UNSPEC;
	key.ifindex = skb->ingress_ifindex;
	found = bpf_map_lookup_elem(&pending, &key);
	if (!found)
		return TC_ACT_UNSPEC;
	if (stage == STAGE_ASKS) {
		found->out_ifindex = skb->ifindex;
		return TC_ACT_UNSPEC;
	}
	note = *found;
	bpf_map_delete_elem(&pending, &key);
	if (note.epoch != epoch)
		return TC_ACT_UNSPEC;
	learn(&key, &note, skb->ifindex);
	if (stage == STAGE_ACCEPTS)
		learn_asking(&key, skb->ifindex, epoch);
	return TC_ACT_UNSPEC;
}
