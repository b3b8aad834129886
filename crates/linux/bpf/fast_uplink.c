// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Runs on packets that the uplink receives. Those of a known flow go straight into their pod, out of
 * the tunnel's headers if they have some. Others to a pod come in through the tunnel's device, as if
 * that had taken the headers off, and the kernel's path decides about them.
 */
#include "fast_tunnel.h"

/* BPF_F_ADJ_ROOM_FIXED_GSO, NO_CSUM_RESET, and DECAP_L3_IPV4 or DECAP_L3_IPV6: the packet becomes one of that. */
#define DECAPSULATE ((1ull << 0) | (1ull << 5))
#define BECOMES_IPV4 (1ull << 7)
#define BECOMES_IPV6 (1ull << 8)
/* The headers of both packets up to the ports, of which the kernel may have a part elsewhere. */
#define HEADERS_BYTES(outer) (sizeof(struct ethernet) + (outer) + sizeof(struct ipv6) + sizeof(struct transport))

/*
 * Whether the outer addresses are those of this node and another, on the way to that. The tunnel's device
 * would not ask. What has met congestion is left to it: it tells the inner packet.
 */
INLINE int is_between(void *ip, u16 type, u32 number, u32 ifindex)
{
	struct node *node = bpf_map_lookup_elem(&nodes, &number);
	struct ipv6 *ipv6 = ip;
	struct ipv4 *ipv4 = ip;

	if (!node || node->out_ifindex != ifindex || ecn_of(ip, type) == ECN_CONGESTED)
		return 0;
	if (type == ETH_P_IP)
		return node->kind == NODE_VXLAN && node->address.words[3] == ipv4->from &&
		       node->own_address.words[3] == ipv4->to;
	return node->kind == NODE_VXLAN_IPV6 && has_words(&node->address, ipv6->from) &&
	       has_words(&node->own_address, ipv6->to);
}

/* Whether the program may take the outer headers off what has come from a node: the kernel has let such packets pass. */
INLINE int may_decapsulate(void *ip, u16 type, u32 number, u32 ifindex, u32 epoch, u64 now_ns)
{
	struct tunnel *tunnel = bpf_map_lookup_elem(&tunnels, &number);

	return tunnel && has_passed(&tunnel->received, epoch, now_ns) && is_between(ip, type, number, ifindex);
}

/*
 * Takes the outer headers off a packet of `outer`, in which is one of `type`. Nothing has changed where it fails: Linux
 * has BECOMES_IPV4 and BECOMES_IPV6 since 6.3.
 */
INLINE long decapsulate(struct __sk_buff *skb, u16 outer, u16 type)
{
	u64 flags = outer == type ? DECAPSULATE : DECAPSULATE | (type == ETH_P_IP ? BECOMES_IPV4 : BECOMES_IPV6);
	long error = bpf_skb_adjust_room(skb, outer == ETH_P_IP ? -VXLAN_BYTES : -VXLAN_IPV6_BYTES, BPF_ADJ_ROOM_MAC,
					 flags);

	/* What was verified of the outer packet is not of the inner one. */
	if (!error)
		bpf_csum_level(skb, BPF_CSUM_LEVEL_DEC);
	return error;
}

/* Has the tunnel's device receive the inner packet. */
INLINE int into_device(struct __sk_buff *skb, u16 outer, const struct inner *inner, u32 ifindex)
{
	struct ethernet header = inner->ethernet;
	struct ethernet *ethernet;

	if (decapsulate(skb, outer, header.type))
		return TC_ACT_UNSPEC;
	ethernet = (void *)(u64)skb->data;
	if ((void *)(ethernet + 1) > (void *)(u64)skb->data_end)
		return TC_ACT_SHOT;
	*ethernet = header;
	return bpf_redirect(ifindex, BPF_F_INGRESS);
}

TC_PROGRAM fast_uplink(struct __sk_buff *skb)
{
	struct note note = { .ifindex = skb->ifindex, .epoch = setting(SETTING_EPOCH) };
	u16 outer = skb->protocol, type = outer;
	enum stage stage = STAGE_WITHIN;
	struct inner *inner = 0;
	struct endpoint *endpoint;
	struct ethernet *ethernet;
	struct flow *flow = 0;
	u32 vxlan_ifindex, headers_bytes, ip_bytes, bytes;
	void *ip, *end;
	u64 now_ns;

	if (!note.epoch || skb->pkt_type != PACKET_HOST || skb->vlan_present ||
	    (type != ETH_P_IP && type != ETH_P_IPV6))
		return TC_ACT_UNSPEC;
	ethernet = (void *)(u64)skb->data;
	end = (void *)(u64)skb->data_end;
	headers_bytes = HEADERS_BYTES(outer == ETH_P_IP ? VXLAN_BYTES : VXLAN_IPV6_BYTES);
	if ((void *)ethernet + headers_bytes > end) {
		if (bpf_skb_pull_data(skb, skb->len < headers_bytes ? skb->len : headers_bytes))
			return TC_ACT_UNSPEC;
		ethernet = (void *)(u64)skb->data;
		end = (void *)(u64)skb->data_end;
	}
	ip = ethernet + 1;
	ip_bytes = skb->len - sizeof(*ethernet);
	vxlan_ifindex = setting(outer == ETH_P_IP ? SETTING_VXLAN_IFINDEX : SETTING_VXLAN_IPV6_IFINDEX);
	if (vxlan_ifindex)
		inner = outer == ETH_P_IP ? in_ipv4(ip, end) : in_ipv6(ip, end);
	if (inner) {
		note.ifindex = vxlan_ifindex;
		type = inner->ethernet.type;
		ip_bytes -= (void *)(inner + 1) - ip;
		ip = inner + 1;
	}
	bytes = read_packet(skb, ip, ip_bytes, type, &note.tuple, &stage);
	if (!bytes)
		return TC_ACT_UNSPEC;
	endpoint = bpf_map_lookup_elem(&endpoints, &note.tuple.to);
	if (!endpoint || bytes > endpoint->mtu)
		return TC_ACT_UNSPEC;
	now_ns = bpf_ktime_get_coarse_ns();
	if (stage <= STAGE_ACKNOWLEDGES)
		flow = known_flow(&note.tuple, note.ifindex, note.epoch, now_ns);
	else
		forget(&note.tuple, note.ifindex);
	if (inner) {
		note.node = flow ? flow->node : node_of(&note.tuple.from);
		note.is_of_device =
			!may_decapsulate(ethernet + 1, outer, note.node, skb->ifindex, note.epoch, now_ns);
	}
	if (!flow || note.is_of_device) {
		leave_note(skb, &note);
		return inner && !note.is_of_device ? into_device(skb, outer, inner, vxlan_ifindex) : TC_ACT_UNSPEC;
	}
	if (endpoint->ifindex != flow->out_ifindex)
		return TC_ACT_UNSPEC;
	if (inner) {
		if (decapsulate(skb, outer, type))
			return TC_ACT_UNSPEC;
		ethernet = (void *)(u64)skb->data;
		ip = ethernet + 1;
		if (ip + (type == ETH_P_IP ? sizeof(struct ipv4) : sizeof(struct ipv6)) > (void *)(u64)skb->data_end)
			return TC_ACT_SHOT;
		ethernet->type = type;
	}
	count(flow, ip_bytes, endpoint->place);
	decrement_ttl(skb, ip, type);
	set_macs(ethernet, endpoint->pod_mac, endpoint->host_mac);
	return bpf_redirect_peer(endpoint->ifindex, 0);
}
