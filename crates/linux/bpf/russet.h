/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What Russet's BPF programs use of the kernel: types, the context of a packet, helpers, map
 * definitions. Everything is declared here, so that an object depends on the compiler and on the
 * files of this directory only. Numbers and layouts are those of linux/bpf.h and linux/pkt_cls.h;
 * crates/linux/src/bpf/object.rs reads what the macros leave in an object.
 */
#ifndef RUSSET_H
#define RUSSET_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

/* The context of a program at `clsact` or TCX: the kernel rewrites each access. */
struct __sk_buff {
	u32 len;
	u32 pkt_type;
	u32 mark;
	u32 queue_mapping;
	u32 protocol; /* in network byte order */
	u32 vlan_present;
	u32 vlan_tci;
	u32 vlan_proto;
	u32 priority;
	u32 ingress_ifindex; /* where the packet came in, also behind routing */
	u32 ifindex;
	u32 tc_index;
	u32 cb[5];
	u32 hash;
	u32 tc_classid;
	u32 data; /* an address, which the kernel makes 64 bits wide */
	u32 data_end;
	u32 napi_id;
	u32 family;
	u32 remote_ip4;
	u32 local_ip4;
	u32 remote_ip6[4];
	u32 local_ip6[4];
	u32 remote_port;
	u32 local_port;
	u32 data_meta;
	u64 flow_keys __attribute__((aligned(8)));
	u64 tstamp;
	u32 wire_len;
	u32 gso_segs;
	u64 sk __attribute__((aligned(8)));
	u32 gso_size; /* of a packet that is still to be cut into segments, the bytes of each */
};

_Static_assert(__builtin_offsetof(struct __sk_buff, data) == 76, "as in linux/bpf.h");
_Static_assert(__builtin_offsetof(struct __sk_buff, gso_size) == 176, "as in linux/bpf.h");

/* The outer header of a tunnel. The address is in the machine's byte order. */
struct bpf_tunnel_key {
	u32 tunnel_id;
	u32 remote_ipv4[4]; /* the first word; the others are for IPv6 */
	u8 tos;
	u8 ttl;
	u16 ext;
	u32 label;
};

/* The kernel knows more members, and accepts this size since Linux 4.6. */
_Static_assert(sizeof(struct bpf_tunnel_key) == 28, "the members up to the flow label");

/* A neighbour on a link, whose MAC the kernel finds: its `struct bpf_redir_neigh`. */
struct next_hop {
	u32 family;
	u32 address[4]; /* in network byte order; of IPv4 the first word */
};

/* A question about the kernel's routes, and its answer: its `struct bpf_fib_lookup`. */
struct fib_lookup {
	u8 family;
	u8 protocol;
	u16 from_port;
	u16 to_port;
	u16 bytes; /* in the machine's byte order; in the answer, the route's MTU */
	u32 ifindex; /* in the answer, the link of the next hop */
	u32 tos;
	u32 from[4];
	u32 to[4]; /* in the answer, the next hop */
	u32 table;
	u8 macs[12];
};

_Static_assert(sizeof(struct fib_lookup) == 64, "as in linux/bpf.h");

/* Verdicts. */
#define TC_ACT_OK 0
#define TC_ACT_SHOT 2
/* Nothing to say: the next program of TCX or filter of clsact decides, and then the kernel's path. */
#define TC_ACT_UNSPEC (-1)

/* Ethernet types, as `protocol` has them. */
#define htons(number) ((u16)__builtin_bswap16(number))
#define ntohl(number) __builtin_bswap32(number)
#define ETH_P_IP htons(0x0800)
#define ETH_P_ARP htons(0x0806)
#define ETH_P_IPV6 htons(0x86dd)

/* A packet's type: it is addressed to this machine. */
#define PACKET_HOST 0

/* Helpers, by their numbers in `enum bpf_func_id`. */
static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u32 (*const bpf_get_prandom_u32)(void) = (void *)7;
static long (*const bpf_skb_store_bytes)(struct __sk_buff *skb, u32 offset, const void *from, u32 bytes, u64 flags) = (void *)9;
static long (*const bpf_tail_call)(struct __sk_buff *skb, void *programs, u32 index) = (void *)12;
static long (*const bpf_skb_get_tunnel_key)(struct __sk_buff *skb, struct bpf_tunnel_key *key, u32 bytes, u64 flags) = (void *)20;
static long (*const bpf_skb_set_tunnel_key)(struct __sk_buff *skb, struct bpf_tunnel_key *key, u32 bytes, u64 flags) = (void *)21;
static long (*const bpf_redirect)(u32 ifindex, u64 flags) = (void *)23;
static long (*const bpf_skb_load_bytes)(const struct __sk_buff *skb, u32 offset, void *to, u32 bytes) = (void *)26;
static long (*const bpf_skb_change_type)(struct __sk_buff *skb, u32 type) = (void *)32;
static u32 (*const bpf_get_hash_recalc)(struct __sk_buff *skb) = (void *)34;
static long (*const bpf_skb_pull_data)(struct __sk_buff *skb, u32 bytes) = (void *)39;
static long (*const bpf_csum_update)(struct __sk_buff *skb, u32 sum) = (void *)40;
static long (*const bpf_skb_change_head)(struct __sk_buff *skb, u32 bytes, u64 flags) = (void *)43;
static long (*const bpf_skb_adjust_room)(struct __sk_buff *skb, int bytes, u32 mode, u64 flags) = (void *)50;
static long (*const bpf_fib_lookup)(struct __sk_buff *skb, struct fib_lookup *lookup, u32 bytes, u32 flags) = (void *)69;
static long (*const bpf_csum_level)(struct __sk_buff *skb, u64 change) = (void *)135;
static long (*const bpf_redirect_neigh)(u32 ifindex, const struct next_hop *hop, u32 bytes, u64 flags) = (void *)152;
static long (*const bpf_redirect_peer)(u32 ifindex, u64 flags) = (void *)155;
static u64 (*const bpf_ktime_get_coarse_ns)(void) = (void *)160; /* as of the last tick; reads no clock */

/* Kinds of maps, and what a trie must have. */
#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_PROG_ARRAY 3
#define BPF_MAP_TYPE_PERCPU_ARRAY 6
#define BPF_MAP_TYPE_LRU_HASH 9
#define BPF_MAP_TYPE_LPM_TRIE 11
#define BPF_F_NO_PREALLOC 1

/* bpf_map_update_elem: only if the key has no value. */
#define BPF_NOEXIST 1

/* A map, in the section `maps`. */
struct map {
	u32 kind;
	u32 key_bytes;
	u32 value_bytes;
	u32 entries;
	u32 flags;
};

#define MAP(name) __attribute__((section("maps"), used)) struct map name

/*
 * The one program of a file; it is loaded under the name of the function. The kernel lets it call
 * what is reserved for programs under the GPL.
 */
#define TC_PROGRAM                                                                               \
	__attribute__((section("license"), used)) char _license[] = "Dual MIT/GPL";              \
	__attribute__((section("tc"), used)) int

#endif
