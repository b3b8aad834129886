// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Runs on packets that leave the kernel's path: to a pod, into the tunnel or to the uplink. A packet
 * that has come through it unchanged makes its direction of a flow known. What pods send into the
 * tunnel gets its outer headers here and goes to the uplink, once the kernel's path has let an outer
 * packet to that node pass. No other packet changes.
 */
#include "fast_tunnel.h"

/* Makes the direction known whose packet has left the kernel's path through `out_ifindex`. */
INLINE void learn(const struct note *note, enum stage stage, u32 out_ifindex, u64 now_ns)
{
	struct flow *known = bpf_map_lookup_elem(&flows, &note->tuple);
	struct flow flow = {
		.epoch = note->epoch,
		.ifindex = note->ifindex,
		.out_ifindex = out_ifindex,
		.node = note->node,
		.through_kernel_ns = now_ns,
		.from_place = note->from_place,
	};

	/* Counts that another processor adds meanwhile are kept. */
	if (known && known->epoch == flow.epoch && known->ifindex == flow.ifindex &&
	    known->out_ifindex == flow.out_ifindex && known->node == flow.node &&
	    known->from_place == flow.from_place) {
		known->through_kernel_ns = now_ns;
		return;
	}
	if (stage == STAGE_ACKNOWLEDGES && !is_answered(&note->tuple, flow.epoch))
		return;
	if (!known && stage == STAGE_ASKS)
		flow.begun = BEGUN(setting(SETTING_READINGS), SIDE_ASKS);
	else if (!known && stage == STAGE_ACCEPTS)
		flow.begun = BEGUN(setting(SETTING_READINGS), SIDE_ACCEPTS);
	if (known) {
		flow.answered_epoch = known->answered_epoch;
		flow.begun = known->begun;
		flow.packets = known->packets;
		flow.bytes = known->bytes;
	}
	bpf_map_update_elem(&flows, &note->tuple, &flow, 0);
}

/*
 * Sends to its node what has come from a pod through the kernel's path, instead of the tunnel's device. `number` is
 * the node's.
 */
INLINE int send(struct __sk_buff *skb, void *ip, u32 number, u32 bytes, u32 epoch, u64 now_ns)
{
	struct node *node = bpf_map_lookup_elem(&nodes, &number);
	struct tunnel *tunnel = bpf_map_lookup_elem(&tunnels, &number);
	struct handed *handed_here;
	u32 only = 0;

	if (!node || !tunnel || node->kind != NODE_VXLAN || node->via_ifindex != skb->ifindex || bytes > node->mtu)
		return TC_ACT_UNSPEC;
	if (has_passed(&tunnel->sent, epoch, now_ns))
		return encapsulate(skb, node, skb->protocol, ecn_of(ip, skb->protocol), bpf_get_prandom_u32());
	handed_here = bpf_map_lookup_elem(&handed, &only);
	if (handed_here)
		*handed_here = (struct handed){ .epoch = epoch, .node = number };
	skb->tc_index = (u16)epoch;
	return TC_ACT_UNSPEC;
}

/* Notes that the kernel's path has let an outer packet come in, out of which this one was taken. */
INLINE void note_received(const struct note *note, u64 now_ns)
{
	struct tunnel *tunnel = bpf_map_lookup_elem(&tunnels, &note->node);

	if (tunnel)
		tunnel->received = (struct passed){ .epoch = note->epoch, .at_ns = now_ns };
}

/* Notes that an outer packet leaves that the tunnel's device has made of one that was handed to it. */
INLINE void note_sent(struct __sk_buff *skb, const struct ipv4 *ip, u32 epoch)
{
	u32 only = 0;
	struct handed *handed_here = bpf_map_lookup_elem(&handed, &only);
	struct tunnel *tunnel;
	struct node *node;

	/* The others are those that the programs have made, and those of this machine. */
	if (skb->ingress_ifindex || skb->tc_index != (u16)epoch || !handed_here || handed_here->epoch != epoch)
		return;
	node = bpf_map_lookup_elem(&nodes, &handed_here->node);
	tunnel = bpf_map_lookup_elem(&tunnels, &handed_here->node);
	if (!node || !tunnel || node->kind != NODE_VXLAN || node->out_ifindex != skb->ifindex ||
	    node->own_address.words[3] != ip->from || node->address.words[3] != ip->to)
		return;
	handed_here->epoch = 0;
	tunnel->sent = (struct passed){ .epoch = epoch, .at_ns = bpf_ktime_get_coarse_ns() };
}

TC_PROGRAM fast_learn(struct __sk_buff *skb)
{
	struct ethernet *ethernet = (void *)(u64)skb->data;
	void *end = (void *)(u64)skb->data_end;
	void *ip = ethernet + 1;
	u32 epoch = setting(SETTING_EPOCH);
	enum stage stage = STAGE_WITHIN;
	struct tuple tuple = {};
	struct note *note;
	u32 bytes, number;
	u64 now_ns;

	if (!epoch || ip > end)
		return TC_ACT_UNSPEC;
	if (skb->protocol == ETH_P_IP && in_ipv4(ip, end)) {
		note_sent(skb, ip, epoch);
		return TC_ACT_UNSPEC;
	}
	if (!skb->ingress_ifindex)
		return TC_ACT_UNSPEC;
	bytes = read_packet(skb, ip, skb->len - sizeof(*ethernet), skb->protocol, &tuple, &stage);
	if (!bytes)
		return TC_ACT_UNSPEC;
	now_ns = bpf_ktime_get_coarse_ns();
	note = note_of(skb, &tuple, epoch);
	if (note && note->is_of_device)
		note_received(note, now_ns);
	if (note && stage != STAGE_ENDS)
		learn(note, stage, skb->ifindex, now_ns);
	if (skb->ifindex != setting(SETTING_VXLAN_IFINDEX))
		return TC_ACT_UNSPEC;
	/* Addresses or ports that were changed have no note. */
	if (!note && !bpf_map_lookup_elem(&endpoints, &tuple.from))
		return TC_ACT_UNSPEC;
	number = note ? note->node : node_of(&tuple.to);
	return send(skb, ip, number, bytes, epoch, now_ns);
}
