// SPDX-License-Identifier: MIT OR GPL-2.0
/* Runs on packets that a pod has sent, at the host end of its pair of links. */
#include "fast_pod.h"

TC_PROGRAM fast_pod(struct __sk_buff *skb)
{
	return from_pod(skb, 0);
}
