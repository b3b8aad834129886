// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Runs on packets that a pod sends, at the pod's end of a netkit pair, before the host end receives them: in the
 * context of the sender, without a queue in between. The packet is as the host end would have it.
 */
#include "fast_pod.h"

TC_PROGRAM fast_pod_netkit(struct __sk_buff *skb)
{
	return from_pod(skb, 1);
}
