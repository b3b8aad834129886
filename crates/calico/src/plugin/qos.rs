//! Limits on a pod's traffic, from its annotations to its endpoint (calico-cni.md section 2.5.4);
//! Felix enforces them. Invalid values are logged and ignored, as upstream does.

use std::collections::BTreeMap;

use russet_model::Extra;

/// `1k` to `1P` bits a second, in Kubernetes' own annotations and in Calico's.
const BANDWIDTH: (u64, u64) = (1_000, 1_000_000_000_000_000);
/// 4 Gibit: the burst if only a bandwidth is given.
const BURST_DEFAULT: u64 = 1 << 32;
/// Packets per second.
const PACKET_RATE: (u64, u64) = (1, 10_000);
/// The packet burst if only a packet rate is given.
const PACKET_BURST_DEFAULT: u64 = 5;
/// Accepts any positive value.
const ANY: (u64, u64) = (1, u64::MAX >> 1);

/// The endpoint's `qosControls`.
pub fn controls(annotations: &BTreeMap<String, String>) -> Extra {
    let mut controls = Extra::new();
    for (direction, kubernetes) in
        [("ingress", "kubernetes.io/ingress-bandwidth"), ("egress", "kubernetes.io/egress-bandwidth")]
    {
        let own = |what: &str, range| {
            let name = format!("qos.projectcalico.org/{direction}{what}");
            annotations.get(&name).and_then(|text| within(&name, text, range))
        };
        let bandwidth = own("Bandwidth", BANDWIDTH)
            .or_else(|| annotations.get(kubernetes).and_then(|text| within(kubernetes, text, BANDWIDTH)));
        let packet_rate = own("PacketRate", PACKET_RATE);
        let found = [
            ("Bandwidth", bandwidth),
            ("Burst", own("Burst", ANY).or(bandwidth.map(|_| BURST_DEFAULT))),
            ("Peakrate", own("Peakrate", ANY)),
            ("Minburst", own("Minburst", ANY)),
            ("PacketRate", packet_rate),
            ("PacketBurst", own("PacketBurst", ANY).or(packet_rate.map(|_| PACKET_BURST_DEFAULT))),
            ("MaxConnections", own("MaxConnections", ANY)),
        ];
        for (what, value) in found {
            controls.extend(value.map(|value| (format!("{direction}{what}"), value.into())));
        }
    }
    let name = "qos.projectcalico.org/dscp";
    if let Some(text) = annotations.get(name) {
        match text.parse::<u64>() {
            Ok(number @ 0..=63) => controls.extend([("dscp".to_owned(), number.into())]),
            // Names such as AF11; peers write them unchanged.
            Err(_) if !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric()) => {
                controls.extend([("dscp".to_owned(), text.as_str().into())]);
            }
            _ => ignored(name, text),
        }
    }
    controls
}

fn within(name: &str, text: &str, (least, most): (u64, u64)) -> Option<u64> {
    let value = quantity(text).filter(|value| (least..=most).contains(value));
    if value.is_none() {
        ignored(name, text);
    }
    value
}

fn ignored(annotation: &str, text: &str) {
    tracing::warn!(annotation, value = ?text, "annotation ignored: no such limit can be set");
}

/// Kubernetes' quantities, whole numbers only: `10M`, `1Gi`.
fn quantity(text: &str) -> Option<u64> {
    const SUFFIXES: [(&str, u64); 12] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("Pi", 1 << 50),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
        ("P", 1_000_000_000_000_000),
        ("m", 0),
        ("", 1),
    ];
    let (digits, factor) =
        SUFFIXES.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)))?;
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| digits.parse::<u64>().ok()?.checked_mul(factor)).flatten().filter(|_| factor > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controls_of(pairs: &[(&str, &str)]) -> serde_json::Value {
        let pairs = pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        serde_json::Value::Object(controls(&pairs.collect()))
    }

    #[test]
    fn bandwidths_of_kubernetes_annotations_become_controls() {
        // calico-cni.md section 2.5.4
        let controls = controls_of(&[
            ("kubernetes.io/ingress-bandwidth", "10M"),
            ("kubernetes.io/egress-bandwidth", "1Gi"),
        ]);
        let wanted = serde_json::json!({
            "ingressBandwidth": 10_000_000, "ingressBurst": 1_u64 << 32,
            "egressBandwidth": 1 << 30, "egressBurst": 1_u64 << 32,
        });
        assert_eq!(controls, wanted);
    }

    #[test]
    fn calicos_own_annotations_come_first() {
        let controls = controls_of(&[
            ("kubernetes.io/ingress-bandwidth", "10M"),
            ("qos.projectcalico.org/ingressBandwidth", "20M"),
            ("qos.projectcalico.org/ingressBurst", "1M"),
            ("qos.projectcalico.org/egressPacketRate", "200"),
            ("qos.projectcalico.org/egressMaxConnections", "7"),
            ("qos.projectcalico.org/dscp", "AF11"),
        ]);
        let wanted = serde_json::json!({
            "ingressBandwidth": 20_000_000, "ingressBurst": 1_000_000,
            "egressPacketRate": 200, "egressPacketBurst": 5, "egressMaxConnections": 7, "dscp": "AF11",
        });
        assert_eq!(controls, wanted);
    }

    #[test]
    fn values_out_of_range_are_left_out() {
        let controls = controls_of(&[
            ("kubernetes.io/ingress-bandwidth", "999"),
            ("kubernetes.io/egress-bandwidth", "2P"),
            ("qos.projectcalico.org/ingressPacketRate", "10001"),
            ("qos.projectcalico.org/egressPacketRate", "lots"),
            ("qos.projectcalico.org/dscp", "64"),
        ]);
        assert_eq!(controls, serde_json::json!({}));
    }
}
