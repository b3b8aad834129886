// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Runs on packets that the uplink receives. Those of a known flow go straight into their pod, out of
 * the tunnel's headers if they have some.
 */
#include "fast.h"

/* BPF_F_ADJ_ROOM_FIXED_GSO, NO_CSUM_RESET, and DECAP_L3_IPV6: the packet becomes one of IPv6. */
#define DECAPSULATE ((1ull << 0) | (1ull << 5))
#define BECOMES_IPV6 (1ull << 8)
/* The headers of both packets up to the ports, of which the kernel may have a part elsewhere. */
#define HEADERS_BYTES (sizeof(struct ethernet) + VXLAN_BYTES + sizeof(struct ipv6) + sizeof(struct transport))

struct inner {
	struct udp udp;
	struct vxlan vxlan;
	struct ethernet ethernet;
} __attribute__((packed));

/* Whether the outer headers are those of the cluster's tunnel. */
INLINE int is_tunnelled(struct ipv4 *ip, void *end)
{
	struct inner *inner = (void *)(ip + 1);

	return (void *)(inner + 1) <= end && ip->version_length == 0x45 && ip->protocol == IPPROTO_UDP &&
	       !(ip->fragment & FRAGMENTED) && inner->udp.to == (u16)setting(SETTING_VXLAN_PORT) &&
	       inner->vxlan.flags == VXLAN_FLAGS && inner->vxlan.vni == setting(SETTING_VXLAN_VNI);
}

/* The number of the node that has an address behind the tunnel; 0 if none has. */
INLINE u32 node_of(const struct address *address)
{
	struct prefix prefix = { .bits = 128, .address = *address };
	u32 *number = bpf_map_lookup_elem(&prefixes, &prefix);

	return number ? *number : 0;
}

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

TC_PROGRAM fast_uplink(struct __sk_buff *skb)
{
	u32 vxlan_ifindex = setting(SETTING_VXLAN_IFINDEX);
	u32 epoch = setting(SETTING_EPOCH);
	u32 ifindex = skb->ifindex;
	u16 type = skb->protocol;
	enum stage stage = STAGE_WITHIN;
	u64 decapsulate = 0;
	struct endpoint *endpoint;
	struct ethernet *ethernet;
	struct tuple tuple = {};
	struct flow *flow;
	u32 ip_bytes, bytes;
	void *ip, *end;

	if (!epoch || skb->pkt_type != PACKET_HOST || skb->vlan_present || (type != ETH_P_IP && type != ETH_P_IPV6))
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
		struct inner *inner = ip + sizeof(struct ipv4);

		ifindex = vxlan_ifindex;
		type = inner->ethernet.type;
		ip = inner + 1;
		ip_bytes -= VXLAN_BYTES;
		decapsulate = type == ETH_P_IPV6 ? DECAPSULATE | BECOMES_IPV6 : DECAPSULATE;
	}
	bytes = read_packet(skb, ip, ip_bytes, type, &tuple, &stage);
	if (!bytes)
		return TC_ACT_UNSPEC;
	endpoint = bpf_map_lookup_elem(&endpoints, &tuple.to);
	if (!endpoint || bytes > endpoint->mtu)
		return TC_ACT_UNSPEC;
	if (stage != STAGE_WITHIN)
		forget(&tuple, ifindex);
	if (stage == STAGE_ENDS)
		return TC_ACT_UNSPEC;
	flow = stage == STAGE_WITHIN ? known_flow(&tuple, ifindex, epoch) : 0;
	if (!flow) {
		note_pending(&tuple, ifindex, epoch, decapsulate ? node_of(&tuple.from) : 0);
		return TC_ACT_UNSPEC;
	}
	if (endpoint->ifindex != flow->out_ifindex)
		return TC_ACT_UNSPEC;
	if (decapsulate && !is_between((void *)(ethernet + 1), flow->node, skb->ifindex))
		return TC_ACT_UNSPEC;
	if (decapsulate) {
		/* Nothing has changed where it fails: Linux has BECOMES_IPV6 since 6.3. */
		if (bpf_skb_adjust_room(skb, -VXLAN_BYTES, BPF_ADJ_ROOM_MAC, decapsulate))
			return TC_ACT_UNSPEC;
		/* What was verified of the outer packet is not of the inner one. */
		bpf_csum_level(skb, BPF_CSUM_LEVEL_DEC);
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
