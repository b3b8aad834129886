// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Runs on packets that the uplink receives. Those of a known flow go straight into their pod, out of
 * the tunnel's headers if they have some. Others to a pod come in through the tunnel's device, as if
 * that had taken the headers off, and the kernel's path decides about them.
 */
#include "fast_tunnel.h"

/* BPF_F_ADJ_ROOM_FIXED_GSO, NO_CSUM_RESET, and DECAP_L3_IPV6: the packet becomes one of IPv6. */
#define DECAPSULATE ((1ull << 0) | (1ull << 5))
#define BECOMES_IPV6 (1ull << 8)
/* The headers of both packets up to the ports, of which the kernel may have a part elsewhere. */
#define HEADERS_BYTES (sizeof(struct ethernet) + VXLAN_BYTES + sizeof(struct ipv6) + sizeof(struct transport))

/*
 * Whether the outer addresses are those of this node and another, on the way to that. The tunnel's device
 * would not ask. What has met congestion is left to it: it tells the inner packet.
 */
INLINE int is_between(const struct ipv4 *ip, u32 number, u32 ifindex)
{
	struct node *node = bpf_map_lookup_elem(&nodes, &number);

	return node && node->kind == NODE_VXLAN && node->address == ip->from && node->own_address == ip->to &&
	       node->out_ifindex == ifindex && (ip->tos & ECN_CONGESTED) != ECN_CONGESTED;
}

/* Whether the program may take the outer headers off what has come from a node: the kernel has let such packets pass. */
INLINE int may_decapsulate(const struct ipv4 *ip, u32 number, u32 ifindex, u32 epoch, u64 now_ns)
{
	struct tunnel *tunnel = bpf_map_lookup_elem(&tunnels, &number);

	return tunnel && has_passed(&tunnel->received, epoch, now_ns) && is_between(ip, number, ifindex);
}

/* Takes the outer headers off. Nothing has changed where it fails: Linux has BECOMES_IPV6 since 6.3. */
INLINE long decapsulate(struct __sk_buff *skb, u16 type)
{
	long error = bpf_skb_adjust_room(skb, -VXLAN_BYTES, BPF_ADJ_ROOM_MAC,
					 type == ETH_P_IPV6 ? DECAPSULATE | BECOMES_IPV6 : DECAPSULATE);

	/* What was verified of the outer packet is not of the inner one. */
	if (!error)
		bpf_csum_level(skb, BPF_CSUM_LEVEL_DEC);
	return error;
}

/* Has the tunnel's device receive the inner packet. */
INLINE int into_device(struct __sk_buff *skb, const struct inner *inner)
{
	u32 vxlan_ifindex = setting(SETTING_VXLAN_IFINDEX);
	struct ethernet header = inner->ethernet;
	struct ethernet *ethernet;

	if (decapsulate(skb, header.type))
		return TC_ACT_UNSPEC;
	ethernet = (void *)(u64)skb->data;
	if ((void *)(ethernet + 1) > (void *)(u64)skb->data_end)
		return TC_ACT_SHOT;
	*ethernet = header;
	return bpf_redirect(vxlan_ifindex, BPF_F_INGRESS);
}

TC_PROGRAM fast_uplink(struct __sk_buff *skb)
{
	u32 vxlan_ifindex = setting(SETTING_VXLAN_IFINDEX);
	struct note note = { .ifindex = skb->ifindex, .epoch = setting(SETTING_EPOCH) };
	u16 type = skb->protocol;
	enum stage stage = STAGE_WITHIN;
	struct inner *inner = 0;
	struct endpoint *endpoint;
	struct ethernet *ethernet;
	struct flow *flow = 0;
	u32 ip_bytes, bytes;
	void *ip, *end;
	u64 now_ns;

	if (!note.epoch || skb->pkt_type != PACKET_HOST || skb->vlan_present ||
	    (type != ETH_P_IP && type != ETH_P_IPV6))
		return TC_ACT_UNSPEC;
	ethernet = (void *)(u64)skb->data;
	end = (void *)(u64)skb->data_end;
	if ((void *)ethernet + HEADERS_BYTES > end) {
		u32 wanted = skb->len < HEADERS_BYTES ? skb->len : HEADERS_BYTES;

		if (bpf_skb_pull_data(skb, wanted))
			return TC_ACT_UNSPEC;
		ethernet = (void *)(u64)skb->data;
		end = (void *)(u64)skb->data_end;
	}
	ip = ethernet + 1;
	ip_bytes = skb->len - sizeof(*ethernet);
	if (type == ETH_P_IP && vxlan_ifindex && ip + sizeof(struct ipv4) <= end && is_tunnelled(ip, end)) {
		inner = ip + sizeof(struct ipv4);
		note.ifindex = vxlan_ifindex;
		type = inner->ethernet.type;
		ip = inner + 1;
		ip_bytes -= VXLAN_BYTES;
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
		note.is_of_device = !may_decapsulate((void *)(ethernet + 1), note.node, skb->ifindex, note.epoch, now_ns);
	}
	if (!flow || note.is_of_device) {
		leave_note(skb, &note);
		return inner && !note.is_of_device ? into_device(skb, inner) : TC_ACT_UNSPEC;
	}
	if (endpoint->ifindex != flow->out_ifindex)
		return TC_ACT_UNSPEC;
	if (inner) {
		if (decapsulate(skb, type))
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
