/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What the programs do that take what a pod has sent. Packets of a known flow go straight to the other pod or to the
 * uplink, with the outer headers of the tunnel if there is one; to a tunnel in IPv6, straight to its device.
 */
#ifndef FAST_POD_H
#define FAST_POD_H

#include "fast_tunnel.h"

/* Notes where the packet goes by the kernel's routes, if that is a pod. */
INLINE void note_packet(struct __sk_buff *skb, const struct tuple *tuple, u32 epoch)
{
	struct note note = { .tuple = *tuple, .ifindex = skb->ifindex, .epoch = epoch };
	u32 *place;

	if (!bpf_map_lookup_elem(&endpoints, &tuple->to)) {
		note.node = node_of(&tuple->to);
		if (!note.node)
			return;
	}
	place = bpf_map_lookup_elem(&places, &note.ifindex);
	if (place)
		note.from_place = *place;
	leave_note(skb, &note);
}

/* What a pod has sent. `is_in_pod`: it is on its way through a netkit pair yet. */
INLINE int from_pod(struct __sk_buff *skb, int is_in_pod)
{
	struct ethernet *ethernet = (void *)(u64)skb->data;
	void *ip = ethernet + 1;
	u32 epoch = setting(SETTING_EPOCH);
	u32 ip_bytes = skb->len - sizeof(*ethernet);
	u16 type = skb->protocol;
	u64 now_ns = bpf_ktime_get_coarse_ns();
	enum stage stage = STAGE_WITHIN;
	struct endpoint *endpoint;
	struct tuple tuple = {};
	struct tunnel *tunnel;
	struct flow *flow = 0;
	struct node *node;
	u32 bytes, number;
	u8 ecn;

	if (!epoch || skb->pkt_type != PACKET_HOST || skb->vlan_present || ip > (void *)(u64)skb->data_end)
		return TC_ACT_UNSPEC;
	bytes = read_packet(skb, ip, ip_bytes, type, &tuple, &stage);
	if (!bytes)
		return TC_ACT_UNSPEC;
	if (stage <= STAGE_ACKNOWLEDGES)
		flow = known_flow(&tuple, skb->ifindex, epoch, now_ns);
	else
		forget(&tuple, skb->ifindex);
	if (!flow) {
		note_packet(skb, &tuple, epoch);
		return TC_ACT_UNSPEC;
	}
	if (!flow->node) {
		endpoint = bpf_map_lookup_elem(&endpoints, &tuple.to);
		if (!endpoint || endpoint->ifindex != flow->out_ifindex || bytes > endpoint->mtu)
			return TC_ACT_UNSPEC;
		count(flow, ip_bytes, endpoint->place);
		decrement_ttl(skb, ip, type);
		set_macs(ethernet, endpoint->pod_mac, endpoint->host_mac);
		/* bpf_redirect_peer works only where a link receives the packet. */
		return is_in_pod ? bpf_redirect(endpoint->ifindex, 0) : bpf_redirect_peer(endpoint->ifindex, 0);
	}
	number = flow->node;
	node = bpf_map_lookup_elem(&nodes, &number);
	if (!node || !node->kind || node->via_ifindex != flow->out_ifindex || bytes > node->mtu)
		return TC_ACT_UNSPEC;
	if (node->kind == NODE_VXLAN) {
		tunnel = bpf_map_lookup_elem(&tunnels, &number);
		if (!tunnel || !has_passed(&tunnel->sent, epoch, now_ns))
			return TC_ACT_UNSPEC;
	}
	count(flow, ip_bytes, 0);
	decrement_ttl(skb, ip, type);
	if (node->kind == NODE_DIRECT)
		return bpf_redirect_neigh(node->out_ifindex, &node->next_hop, sizeof(node->next_hop), 0);
	if (node->kind == NODE_VXLAN_IPV6) {
		set_macs(ethernet, node->inner_to, node->inner_from);
		return bpf_redirect(node->via_ifindex, 0);
	}
	ecn = ecn_of(ip, type);
	return encapsulate(skb, node, type, ecn, flow->packets);
}

#endif
