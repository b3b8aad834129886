// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Runs on packets that the uplink receives. The inner packet of a node's datagram comes in through the device of
 * flannel's backend `udp`, as if the daemon's loop had written it there.
 */
#include "udp_tunnel.h"

#define BPF_F_RECOMPUTE_CSUM 1
/* BPF_F_ADJ_ROOM_FIXED_GSO and NO_CSUM_RESET. */
#define DECAPSULATE ((1ull << 0) | (1ull << 5))
/* The headers of both packets, of which the kernel may have a part elsewhere. */
#define HEADERS_BYTES (sizeof(struct outer) + sizeof(struct ipv4) + sizeof(struct transport))
/*
 * So much of the inner packet is cut off together with the outer headers, and put back. A checksum of the outer packet that
 * its sender has left unfinished, where that is another namespace or machine of this host, begins at the UDP header: only when
 * the kernel sees that this is gone does it take the inner packet's as it is. Without this, the place would be found in
 * front of the packet. The Ethernet header, which is moved up, ends where the UDP header ended.
 */
#define CUT_BYTES 8

/* Whether the first `bytes` can be read directly. */
INLINE int is_readable(struct __sk_buff *skb, u32 bytes)
{
	if (skb->len < bytes)
		bytes = skb->len;
	return (void *)(u64)skb->data + bytes <= (void *)(u64)skb->data_end || !bpf_skb_pull_data(skb, bytes);
}

/* Whether it is a datagram from a node to this end of the tunnel. */
INLINE int is_tunnelled(struct __sk_buff *skb, const struct settings *own)
{
	struct outer *outer = (void *)(u64)skb->data;
	struct ipv4 *ip = &outer->ip;

	return (void *)(outer + 1) <= (void *)(u64)skb->data_end && ip->version_length == 0x45 &&
	       ip->protocol == IPPROTO_UDP && ip->to == own->address && outer->udp.to == own->port &&
	       !(ip->fragment & FRAGMENTED) && htons(ip->bytes) == skb->len - sizeof(struct ethernet) &&
	       htons(outer->udp.bytes) == skb->len - sizeof(struct ethernet) - sizeof(struct ipv4) &&
	       bpf_map_lookup_elem(&senders, &ip->from);
}

TC_PROGRAM udp_receive(struct __sk_buff *skb)
{
	struct settings *own = own_end();
	u8 head[CUT_BYTES];
	struct outer *outer;
	struct ipv4 *ip;
	u32 inner_bytes, bytes;

	if (!own || !own->address || skb->protocol != ETH_P_IP || skb->pkt_type != PACKET_HOST || skb->vlan_present)
		return TC_ACT_UNSPEC;
	if (!is_readable(skb, sizeof(struct outer)) || !is_tunnelled(skb, own) || !is_readable(skb, HEADERS_BYTES))
		return TC_ACT_UNSPEC;
	outer = (void *)(u64)skb->data;
	ip = (void *)(outer + 1);
	if ((void *)(ip + 1) > (void *)(u64)skb->data_end)
		return TC_ACT_UNSPEC;
	inner_bytes = skb->len - sizeof(*outer);
	bytes = plain_bytes(skb, ip, inner_bytes);
	if (!bytes || bytes > own->mtu)
		return TC_ACT_UNSPEC;
	decrement_ipv4_ttl(ip);
	__builtin_memcpy(head, ip, sizeof(head));
	/* What was verified of the outer packet is not of the inner one. */
	bpf_csum_level(skb, BPF_CSUM_LEVEL_DEC);
	if (bpf_skb_adjust_room(skb, -(int)(OUTER_BYTES + CUT_BYTES), BPF_ADJ_ROOM_MAC, DECAPSULATE) ||
	    bpf_skb_adjust_room(skb, CUT_BYTES, BPF_ADJ_ROOM_MAC, DECAPSULATE) ||
	    bpf_skb_store_bytes(skb, sizeof(struct ethernet), head, sizeof(head), BPF_F_RECOMPUTE_CSUM))
		return TC_ACT_SHOT;
	count(CARRIED_RECEIVED, inner_bytes);
	return bpf_redirect(own->device_ifindex, BPF_F_INGRESS);
}
