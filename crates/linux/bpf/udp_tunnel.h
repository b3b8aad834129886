/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What the programs of flannel's backend `udp` share: the wire format is an IPv4 packet in a UDP datagram
 * (docs/spec/flannel.md section 6.1).
 *
 * They carry what is plain, at both ends of the device: on it after the kernel's routes and rules, and from it
 * before them. All else is left to the loop of the daemon, which has the device and the port.
 */
#ifndef UDP_TUNNEL_H
#define UDP_TUNNEL_H

#include "packet.h"

#define IPPROTO_ICMP 1
/* The shortest header behind IP's that is carried. */
#define SHORT_HEADER_BYTES 8

struct outer {
	struct ethernet ethernet;
	struct ipv4 ip;
	struct udp udp;
} __attribute__((packed));

/* Outer IPv4 and UDP headers. */
#define OUTER_BYTES (sizeof(struct ipv4) + sizeof(struct udp))

/* This node's end of the tunnel. Without it, all is 0, and nothing is carried. */
struct settings {
	u32 address; /* in network byte order */
	u32 uplink_ifindex;
	u32 device_ifindex; /* flannel0 */
	u32 mtu; /* of the packets without outer headers */
	u16 port; /* of all nodes, in network byte order */
	u8 unused[2];
};

struct subnet {
	u32 bits;
	u32 address; /* in network byte order */
};

/* What is in `carried`. */
enum { CARRIED_SENT, CARRIED_RECEIVED, CARRIED };

MAP(settings) = { BPF_MAP_TYPE_ARRAY, sizeof(u32), sizeof(struct settings), 1, 0 };
/* The node of each subnet; 0 where the loop sends to it. */
MAP(subnets) = { BPF_MAP_TYPE_LPM_TRIE, sizeof(struct subnet), sizeof(u32), 65536, BPF_F_NO_PREALLOC };
/* The addresses of all nodes. Any other sender would choose the inner source. */
MAP(senders) = { BPF_MAP_TYPE_HASH, sizeof(u32), sizeof(u32), 65536, BPF_F_NO_PREALLOC };
MAP(carried) = { BPF_MAP_TYPE_PERCPU_ARRAY, sizeof(u32), sizeof(struct carried), CARRIED, 0 };

INLINE struct settings *own_end(void)
{
	u32 only = 0;

	return bpf_map_lookup_elem(&settings, &only);
}

/*
 * How many bytes a packet has that is carried, or each of its segments. Returns 0 for one that is left to the loop: with
 * options, a fragment, at the end of its life, of another length than its header says, UDP that is still to be segmented,
 * or of a protocol that might have a checksum of another kind.
 */
INLINE u32 plain_bytes(struct __sk_buff *skb, struct ipv4 *ip, u32 bytes)
{
	struct transport *transport = (void *)(ip + 1);
	void *end = (void *)(u64)skb->data_end;
	u32 gso_size = skb->gso_size;

	if ((void *)(ip + 1) > end || ip->version_length != 0x45 || ip->ttl <= 1 || (ip->fragment & FRAGMENTED) ||
	    htons(ip->bytes) != bytes)
		return 0;
	if (ip->protocol == IPPROTO_TCP) {
		if ((void *)(transport + 1) > end)
			return 0;
		return gso_size ? gso_size + sizeof(*ip) + (transport->offset >> 4) * 4 : bytes;
	}
	if (gso_size || (ip->protocol != IPPROTO_UDP && ip->protocol != IPPROTO_ICMP) ||
	    bytes < sizeof(*ip) + SHORT_HEADER_BYTES)
		return 0;
	return bytes;
}

INLINE void count(u32 which, u32 bytes)
{
	struct carried *here = bpf_map_lookup_elem(&carried, &which);

	if (here) {
		here->packets += 1;
		here->bytes += bytes;
	}
}

#endif
