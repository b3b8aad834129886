// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Runs on packets that a pod has sent, at the host end of its veth. Those of a known flow go
 * straight to the other pod or to the uplink, with the outer headers of the tunnel if there is one.
 */
#include "fast.h"

/*
 * BPF_F_ADJ_ROOM_FIXED_GSO, ENCAP_L3_IPV4, ENCAP_L4_UDP, ENCAP_L2(14), ENCAP_L2_ETH: a packet that
 * is still to be segmented stays one, and its segments get the outer headers.
 */
#define ENCAPSULATE ((1ull << 0) | (1ull << 1) | (1ull << 4) | (14ull << 56) | (1ull << 6))
#define OUTER_TTL 64
/* What the kernel gives to tunnels: 49152 to 65535. */
#define SOURCE_PORT_FIRST 49152
#define SOURCE_PORT_MASK 0x3fff

struct outer {
	struct ethernet ethernet;
	struct ipv4 ip;
	struct udp udp;
	struct vxlan vxlan;
	struct ethernet inner;
} __attribute__((packed));

/* The ECN bits of the inner packet: the outer header has them, and no other part of the class. */
INLINE u8 ecn_of(void *ip, u16 type)
{
	if (type == ETH_P_IP)
		return ((struct ipv4 *)ip)->tos & 3;
	return (ntohl(((struct ipv6 *)ip)->version_class_label) >> 20) & 3;
}

INLINE int encapsulate(struct __sk_buff *skb, struct node *node, u16 type, u8 ecn)
{
	u32 bytes = skb->len - sizeof(struct ethernet) + VXLAN_BYTES;
	u32 hash = bpf_get_hash_recalc(skb);
	struct outer *outer;

	if (bpf_skb_adjust_room(skb, VXLAN_BYTES, BPF_ADJ_ROOM_MAC, ENCAPSULATE))
		return TC_ACT_SHOT;
	outer = (void *)(u64)skb->data;
	if ((void *)(outer + 1) > (void *)(u64)skb->data_end)
		return TC_ACT_SHOT;
	outer->ethernet.type = ETH_P_IP;
	outer->ip = (struct ipv4){
		.version_length = 0x45,
		.tos = ecn,
		.bytes = htons(bytes),
		.id = bpf_get_prandom_u32(),
		.ttl = OUTER_TTL,
		.protocol = IPPROTO_UDP,
		.from = node->own_address,
		.to = node->address,
	};
	outer->ip.checksum = checksum_of(&outer->ip);
	outer->udp = (struct udp){
		.from = htons(SOURCE_PORT_FIRST + (hash & SOURCE_PORT_MASK)),
		.to = node->port,
		.bytes = htons(bytes - sizeof(struct ipv4)),
	};
	outer->vxlan = (struct vxlan){ .flags = VXLAN_FLAGS, .vni = node->vni };
	set_macs(&outer->inner, node->inner_to, node->inner_from);
	outer->inner.type = type;
	return bpf_redirect_neigh(node->out_ifindex, &node->next_hop, sizeof(node->next_hop), 0);
}

/* Where the packet goes by the kernel's routes, if that is a pod. */
INLINE void note(const struct tuple *tuple, u32 ifindex, u32 epoch)
{
	struct prefix prefix = { .bits = 128, .address = tuple->to };
	u32 here = 0;
	u32 *node = &here;

	if (!bpf_map_lookup_elem(&endpoints, &tuple->to)) {
		node = bpf_map_lookup_elem(&prefixes, &prefix);
		if (!node || !*node)
			return;
	}
	note_pending(tuple, ifindex, epoch, *node);
}

TC_PROGRAM fast_pod(struct __sk_buff *skb)
{
	struct ethernet *ethernet = (void *)(u64)skb->data;
	void *ip = ethernet + 1;
	u32 epoch = setting(SETTING_EPOCH);
	u32 ip_bytes = skb->len - sizeof(*ethernet);
	u16 type = skb->protocol;
	enum stage stage = STAGE_WITHIN;
	struct endpoint *endpoint;
	struct tuple tuple = {};
	struct flow *flow;
	struct node *node;
	u32 bytes;
	u8 ecn;

	if (!epoch || skb->pkt_type != PACKET_HOST || skb->vlan_present || ip > (void *)(u64)skb->data_end)
		return TC_ACT_UNSPEC;
	bytes = read_packet(skb, ip, ip_bytes, type, &tuple, &stage);
	if (!bytes)
		return TC_ACT_UNSPEC;
	if (stage != STAGE_WITHIN) {
		forget(&tuple, skb->ifindex);
		if (stage != STAGE_ENDS)
			note(&tuple, skb->ifindex, epoch);
		return TC_ACT_UNSPEC;
	}
	flow = known_flow(&tuple, skb->ifindex, epoch);
	if (!flow) {
		note(&tuple, skb->ifindex, epoch);
		return TC_ACT_UNSPEC;
	}
	if (!flow->node) {
		endpoint = bpf_map_lookup_elem(&endpoints, &tuple.to);
		if (!endpoint || endpoint->ifindex != flow->out_ifindex || bytes > endpoint->mtu)
			return TC_ACT_UNSPEC;
		count(flow, ip_bytes, endpoint->place);
		decrement_ttl(skb, ip, type);
		set_macs(ethernet, endpoint->pod_mac, endpoint->host_mac);
		return bpf_redirect_peer(endpoint->ifindex, 0);
	}
	node = bpf_map_lookup_elem(&nodes, &flow->node);
	if (!node || !node->kind || node->via_ifindex != flow->out_ifindex || bytes > node->mtu)
		return TC_ACT_UNSPEC;
	count(flow, ip_bytes, 0);
	decrement_ttl(skb, ip, type);
	if (node->kind == NODE_DIRECT)
		return bpf_redirect_neigh(node->out_ifindex, &node->next_hop, sizeof(node->next_hop), 0);
	ecn = ecn_of(ip, type);
	return encapsulate(skb, node, type, ecn);
}
