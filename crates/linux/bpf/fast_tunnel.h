/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The tunnels between nodes, as the programs of the fast path read their outer headers, and make those of
 * IPv4.
 */
#ifndef FAST_TUNNEL_H
#define FAST_TUNNEL_H

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

/* What follows the outer IP header. */
struct inner {
	struct udp udp;
	struct vxlan vxlan;
	struct ethernet ethernet;
} __attribute__((packed));

/* Whether what follows the outer IP header is of a tunnel whose settings begin with `first`. */
INLINE int is_of_tunnel(const struct inner *inner, const void *end, u32 first)
{
	return (const void *)(inner + 1) <= end && inner->udp.to == (u16)setting(first + 1) &&
	       inner->vxlan.flags == VXLAN_FLAGS && inner->vxlan.vni == setting(first + 2);
}

/* What the tunnel of IPv4 carries in a packet; none if it is no packet of that. */
INLINE struct inner *in_ipv4(struct ipv4 *ip, const void *end)
{
	struct inner *inner = (void *)(ip + 1);

	return (const void *)(ip + 1) <= end && ip->version_length == 0x45 && ip->protocol == IPPROTO_UDP &&
			       !(ip->fragment & FRAGMENTED) && is_of_tunnel(inner, end, SETTING_VXLAN_IFINDEX) ?
		       inner :
		       0;
}

/* The same of IPv6. */
INLINE struct inner *in_ipv6(struct ipv6 *ip, const void *end)
{
	struct inner *inner = (void *)(ip + 1);

	return (const void *)(ip + 1) <= end && ip->next == IPPROTO_UDP &&
			       is_of_tunnel(inner, end, SETTING_VXLAN_IPV6_IFINDEX) ?
		       inner :
		       0;
}

/* The number of the node that has an address behind the tunnel; 0 if none has. */
INLINE u32 node_of(const struct address *address)
{
	struct prefix prefix = { .bits = 128, .address = *address };
	u32 *number = bpf_map_lookup_elem(&prefixes, &prefix);

	return number ? *number : 0;
}

/* Whether the kernel's path has let outer packets pass in this epoch, and not too long ago. */
INLINE int has_passed(const struct passed *passed, u32 epoch, u64 now_ns)
{
	return passed->epoch == epoch && now_ns < passed->at_ns + THROUGH_KERNEL_NS;
}

/* The ECN bits of the inner packet: the outer header has them, and no other part of the class. */
INLINE u8 ecn_of(void *ip, u16 type)
{
	if (type == ETH_P_IP)
		return ((struct ipv4 *)ip)->tos & 3;
	return (ntohl(((struct ipv6 *)ip)->version_class_label) >> 20) & 3;
}

INLINE int has_words(const struct address *address, const u32 *words)
{
	return address->words[0] == words[0] && address->words[1] == words[1] && address->words[2] == words[2] &&
	       address->words[3] == words[3];
}

/* Gives a packet the outer headers of IPv4, and sends it through the uplink. `number` differs from that of its flow's last ones. */
INLINE int encapsulate(struct __sk_buff *skb, struct node *node, u16 type, u8 ecn, u32 number)
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
		.id = hash + number,
		.ttl = OUTER_TTL,
		.protocol = IPPROTO_UDP,
		.from = node->own_address.words[3],
		.to = node->address.words[3],
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
	/* It is none that the tunnel's device has made. */
	skb->tc_index = 0;
	return bpf_redirect_neigh(node->out_ifindex, &node->next_hop, sizeof(node->next_hop), 0);
}

#endif
