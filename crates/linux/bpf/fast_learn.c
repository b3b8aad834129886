// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Runs on packets that leave the kernel's path: to a pod, into the tunnel or to the uplink. A packet
 * that has come through it unchanged makes its flow known. It changes no packet.
 */
#include "fast.h"

TC_PROGRAM fast_learn(struct __sk_buff *skb)
{
	struct ethernet *ethernet = (void *)(u64)skb->data;
	void *ip = ethernet + 1;
	u32 epoch = setting(SETTING_EPOCH);
	enum stage stage = STAGE_WITHIN;
	struct pending_key key = {};
	struct pending *note;
	struct flow *known;
	struct flow flow = {};

	if (!epoch || !skb->ingress_ifindex || ip > (void *)(u64)skb->data_end)
		return TC_ACT_UNSPEC;
	if (!read_packet(skb, ip, skb->len, skb->protocol, &key.tuple, &stage) || stage == STAGE_ASKS_OR_ENDS)
		return TC_ACT_UNSPEC;
	key.ifindex = skb->ingress_ifindex;
	note = bpf_map_lookup_elem(&pending, &key);
	if (!note)
		return TC_ACT_UNSPEC;
	flow.epoch = note->epoch;
	flow.node = note->node;
	bpf_map_delete_elem(&pending, &key);
	if (flow.epoch != epoch)
		return TC_ACT_UNSPEC;
	flow.ifindex = key.ifindex;
	flow.out_ifindex = skb->ifindex;
	flow.through_kernel_ns = bpf_ktime_get_ns();
	known = bpf_map_lookup_elem(&flows, &key.tuple);
	if (known) {
		flow.answered_epoch = known->answered_epoch;
		flow.packets = known->packets;
		flow.bytes = known->bytes;
	}
	bpf_map_update_elem(&flows, &key.tuple, &flow, 0);
	return TC_ACT_UNSPEC;
}
