//! UIDs of resources (calico-ipam.md section 1.8): UUIDs of RFC 9562, version 4.

/// The UUID that `random` makes; six of its bits give way to version and variant.
pub fn uid(random: [u8; 16]) -> String {
    let mut bytes = random;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_and_variant_stand_where_readers_look() {
        assert_eq!(uid([0; 16]), "00000000-0000-4000-8000-000000000000");
        assert_eq!(uid([0xff; 16]), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }
}
