//! Invalid bytes: foreign content of the datastore is an error or a value, and never causes a
//! panic.

use super::*;

const SEEDS: [&str; 5] = [
    r#"{"EnableIPv4":true,"EnableIPv6":true,"Network":"10.60.0.0/15","SubnetLen":25,"SubnetMin":"10.60.4.0","SubnetMax":"10.61.255.128","IPv6Network":"fd6a:60::/48","IPv6SubnetLen":64,"Backend":{"Type":"vxlan","VNI":42}}"#,
    r#"{"PublicIP":"10.200.0.11","PublicIPv6":"fd00:200::11","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"66:40:9b:77:47:40"}}"#,
    "/coreos.com/network/subnets/10.5.43.0-24&fd00:10:5:30::-64",
    r#"{"Network":"0.0.0.0/1","EnableIPv6":true,"IPv6Network":"::/1","IPv6SubnetLen":3,"SubnetLen":3}"#,
    r#"{"VNI":1,"VtepMAC":"66-40-9b-77-47-40"}"#,
];

/// A small generator, so that a failure repeats.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn mutated_records_are_errors_or_values_that_can_be_written_again() {
    let mut state = 0x5eed;
    for round in 0..40_000usize {
        let mut bytes = SEEDS[round % SEEDS.len()].as_bytes().to_vec();
        for _ in 0..=next(&mut state) % 4 {
            let at = (next(&mut state) as usize) % bytes.len().max(1);
            if bytes.is_empty() {
                break;
            }
            match next(&mut state) % 4 {
                0 => bytes[at] = next(&mut state) as u8,
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, b"0123456789-&:/\"{}[],.\\u"[(next(&mut state) as usize) % 23]),
                _ => bytes.truncate(at.max(1)),
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        let _ = Vtep::from_json(&text);
        let _ = compact_json(&text);
        if let Ok(config) = NetworkConfig::parse(&bytes)
            && let Ok(config) = config.validated()
        {
            assert_eq!(config.clone().validated().unwrap(), config, "{text}");
            let _ = config.backend.u32("VNI");
        }
        if let Ok(attributes) = Attributes::from_json(&bytes) {
            assert_eq!(Attributes::from_json(&attributes.to_json()).unwrap(), attributes, "{text}");
        }
        if let Ok(key) = text.parse::<SubnetKey>() {
            assert_eq!(key.to_string().parse::<SubnetKey>().unwrap(), key, "{text}");
            let _ = (key.is_canonical(), key.overlaps(&key));
        }
    }
}
