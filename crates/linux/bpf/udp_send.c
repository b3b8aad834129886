// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Runs on packets that leave through the device of flannel's backend `udp`, instead of the daemon's loop: they go to the
 * uplink in a datagram to their node.
 */
#include "udp_tunnel.h"

#define AF_INET 2
/* Routes of what this node sends. Success also means that the MAC of the next hop is known. */
#define BPF_FIB_LOOKUP_OUTPUT 2
/* BPF_F_ADJ_ROOM_FIXED_GSO, ENCAP_L3_IPV4, ENCAP_L4_UDP: a packet that is still to be segmented stays one. */
#define ENCAPSULATE ((1ull << 0) | (1ull << 1) | (1ull << 4))
#define OUTER_TTL 64
#define DONT_FRAGMENT htons(0x4000)
#define IPV4_BYTES_MAX 65535

TC_PROGRAM udp_send(struct __sk_buff *skb)
{
	struct ipv4 *ip = (void *)(u64)skb->data;
	struct settings *own = own_end();
	struct fib_lookup route = { .family = AF_INET, .protocol = IPPROTO_UDP };
	struct subnet to = { .bits = 32 };
	struct next_hop hop = {};
	u32 inner_bytes = skb->len;
	struct outer *outer;
	u32 *node;
	u32 bytes;

	if (!own || !own->address || skb->protocol != ETH_P_IP)
		return TC_ACT_UNSPEC;
	bytes = plain_bytes(skb, ip, inner_bytes);
	if (!bytes || bytes > own->mtu || inner_bytes + OUTER_BYTES > IPV4_BYTES_MAX)
		return TC_ACT_UNSPEC;
	to.address = ip->to;
	node = bpf_map_lookup_elem(&subnets, &to);
	if (!node || !*node)
		return TC_ACT_UNSPEC;
	route.from_port = own->port;
	route.to_port = own->port;
	route.bytes = bytes + OUTER_BYTES;
	route.ifindex = own->uplink_ifindex;
	route.from[0] = own->address;
	route.to[0] = *node;
	/*
	 * No route, a smaller path MTU, and a next hop whose MAC is not known are the loop's. The packet still has the
	 * kernel's route through the device, by which it would leave without a MAC if it had to wait for one.
	 */
	if (bpf_fib_lookup(skb, &route, sizeof(route), BPF_FIB_LOOKUP_OUTPUT))
		return TC_ACT_UNSPEC;
	hop.family = route.family;
	__builtin_memcpy(hop.address, route.to, sizeof(hop.address));
	if (bpf_skb_adjust_room(skb, OUTER_BYTES, BPF_ADJ_ROOM_MAC, ENCAPSULATE))
		return TC_ACT_UNSPEC;
	/* The device has no Ethernet header; the kernel writes the MACs. */
	if (bpf_skb_change_head(skb, sizeof(struct ethernet), 0))
		return TC_ACT_SHOT;
	outer = (void *)(u64)skb->data;
	ip = (void *)(outer + 1);
	if ((void *)(ip + 1) > (void *)(u64)skb->data_end)
		return TC_ACT_SHOT;
	decrement_ipv4_ttl(ip);
	outer->ethernet.type = ETH_P_IP;
	outer->ip = (struct ipv4){
		.version_length = 0x45,
		.bytes = htons(inner_bytes + OUTER_BYTES),
		.fragment = DONT_FRAGMENT,
		.ttl = OUTER_TTL,
		.protocol = IPPROTO_UDP,
		.from = own->address,
		.to = *node,
	};
	outer->ip.checksum = checksum_of(&outer->ip);
	outer->udp = (struct udp){
		.from = own->port,
		.to = own->port,
		.bytes = htons(inner_bytes + sizeof(struct udp)),
	};
	count(CARRIED_SENT, inner_bytes);
	return bpf_redirect_neigh(route.ifindex, &hop, sizeof(hop), 0);
}
