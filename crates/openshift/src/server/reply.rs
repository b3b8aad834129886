//! The answer to an ADD. The stock server always answers in version 0.3.1, and the stock plugin
//! reads nothing else, whatever version its configuration has. Our plugin converts.

use russet_cni_spec::{CniResult, Version};

/// The version of every answer.
const REPLY_VERSION: Version = Version::V0_3_1;
/// The key under which a result of 0.1.0 and 0.2.0 has its IPv4 address.
const IP4: &str = "ip4";

/// The body of the answer to a plugin whose configuration has version `requested`.
///
/// Plugins of OpenShift 3 have a 0.2.0 configuration and read the answer as a 0.2.0 result,
/// whatever its version field (cni-runtime.md section 4.1). For them the address is repeated in the
/// place of the old format; readers of 0.3.1 ignore that key.
pub fn encode(result: &CniResult, requested: Version) -> Vec<u8> {
    let shaped = |version| CniResult { cni_version: version, ..result.clone() };
    let reply = shaped(REPLY_VERSION);
    if !matches!(requested, Version::V0_1_0 | Version::V0_2_0) {
        return reply.encode();
    }
    let (mut reply, mut old) = (reply.to_value(), shaped(requested).to_value());
    if let (Some(reply), Some(ip4)) =
        (reply.as_object_mut(), old.as_object_mut().and_then(|old| old.remove(IP4)))
    {
        reply.insert(IP4.to_owned(), ip4);
    }
    reply.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const RECORDED: &str = r#"{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.128.0.11/23","gateway":"10.128.0.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.128.0.1"},{"dst":"172.30.0.0/16","gw":"10.128.0.1"},{"dst":"10.128.0.0/14"},{"dst":"224.0.0.0/4"}],"dns":{}}"#;

    fn result() -> CniResult {
        CniResult::decode(RECORDED.as_bytes(), Version::LATEST).unwrap()
    }

    #[test]
    fn the_answer_is_the_recorded_one_in_0_3_1_for_every_newer_version() {
        // cni-runtime.md section 4.1
        for requested in [Version::V0_3_0, Version::V0_3_1, Version::V0_4_0, Version::V1_0_0, Version::V1_1_0]
        {
            assert_eq!(String::from_utf8(encode(&result(), requested)).unwrap(), RECORDED, "{requested}");
        }
    }

    #[test]
    fn plugins_with_an_old_configuration_get_0_3_1_that_is_also_valid_0_2_0() {
        for requested in [Version::V0_1_0, Version::V0_2_0] {
            let body = encode(&result(), requested);
            let read = CniResult::decode(&body, requested).unwrap();
            assert_eq!(
                (read.cni_version, &read.ips, &read.routes),
                (Version::V0_3_1, &result().ips, &result().routes)
            );
            let mut reply: Value = serde_json::from_slice(&body).unwrap();
            let ip4 = reply.as_object_mut().unwrap().remove("ip4").unwrap();
            assert_eq!(reply.to_string(), RECORDED, "the rest is the stock answer");
            let old = json!({"cniVersion": "0.2.0", "ip4": ip4}).to_string();
            let old = CniResult::decode(old.as_bytes(), Version::V0_2_0).unwrap();
            assert_eq!((&old.ips, &old.routes), (&result().ips, &result().routes));
        }
    }
}
