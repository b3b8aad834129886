/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Headers of packets, as the programs of the fast paths read and write them.
 */
#ifndef PACKET_H
#define PACKET_H

#include "russet.h"

#define INLINE static __attribute__((always_inline, unused))

#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
/* IPv4: more fragments, or an offset. */
#define FRAGMENTED htons(0x3fff)

/* Where bpf_skb_adjust_room makes room, and what bpf_csum_level changes. */
#define BPF_ADJ_ROOM_MAC 1
#define BPF_CSUM_LEVEL_DEC 2
/* bpf_redirect: as if the link had received it. */
#define BPF_F_INGRESS 1

struct ethernet {
	u8 to[6];
	u8 from[6];
	u16 type;
} __attribute__((packed));

struct ipv4 {
	u8 version_length;
	u8 tos;
	u16 bytes;
	u16 id;
	u16 fragment;
	u8 ttl;
	u8 protocol;
	u16 checksum;
	u32 from;
	u32 to;
} __attribute__((packed));

/* Of TCP, as far as it is read. UDP has the same ports. */
struct transport {
	u16 from;
	u16 to;
	u32 sequence; /* UDP: length and checksum */
	u32 acknowledged;
	u8 offset; /* the header's bytes, divided by 4, in the upper half */
	u8 flags;
} __attribute__((packed));

struct udp {
	u16 from;
	u16 to;
	u16 bytes;
	u16 checksum;
} __attribute__((packed));

/* What a program has carried. */
struct carried {
	u64 packets;
	u64 bytes;
};

INLINE u16 checksum_of(const struct ipv4 *ip)
{
	const u16 *words = (const void *)ip;
	u32 sum = 0;

#pragma unroll
	for (int at = 0; at < 10; at++)
		sum += words[at];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* As a router does. RFC 1624 (3): the TTL is the upper byte of its word. */
INLINE void decrement_ipv4_ttl(struct ipv4 *ip)
{
	u32 sum = ip->checksum + htons(0x0100);

	ip->checksum = sum + (sum >= 0xffff);
	ip->ttl--;
}

INLINE void set_macs(struct ethernet *ethernet, const u8 *to, const u8 *from)
{
	__builtin_memcpy(ethernet->to, to, sizeof(ethernet->to));
	__builtin_memcpy(ethernet->from, from, sizeof(ethernet->from));
}

#endif
