//! Kubernetes' quantities, used in annotations for bandwidth: `10M`, `1.5G`, `512Ki`, `1e6`.

/// The quantity as a whole number, rounded up like Kubernetes; None if it is invalid, negative or
/// too large.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || number.len() > NUMBER_MAX_CHARS
    {
        return None;
    }
    let mantissa: u128 = format!("0{whole}{fraction}").parse().ok()?;
    let (factor, divisor) = scale(suffix)?;
    let divisor = divisor.checked_mul(10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?)?;
    u64::try_from(mantissa.checked_mul(factor)?.div_ceil(divisor)).ok()
}

/// More digits than any bandwidth has.
const NUMBER_MAX_CHARS: usize = 24;

/// The factor and the divisor of a suffix.
fn scale(suffix: &str) -> Option<(u128, u128)> {
    let decimal = |power: u32| Some((10_u128.pow(power), 1));
    let binary = |power: u32| Some((1 << (10 * power), 1));
    match suffix {
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        "m" => Some((1, 1_000)),
        "u" => Some((1, 1_000_000)),
        "n" => Some((1, 1_000_000_000)),
        _ => exponent(suffix.strip_prefix(['e', 'E'])?),
    }
}

fn exponent(text: &str) -> Option<(u128, u128)> {
    match text.strip_prefix('-') {
        Some(power) => Some((1, 10_u128.checked_pow(digits(power)?)?)),
        None => Some((10_u128.checked_pow(digits(text.strip_prefix('+').unwrap_or(text))?)?, 1)),
    }
}

fn digits(text: &str) -> Option<u32> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        let cases = [
            ("10M", 10_000_000),
            ("5M", 5_000_000),
            ("1.5G", 1_500_000_000),
            ("1Ki", 1024),
            ("1e6", 1_000_000),
            ("1E3", 1_000),
            ("2E", 2_000_000_000_000_000_000),
            ("1500m", 2),
            ("+7", 7),
            (".5k", 500),
            ("1e-3", 1),
            ("12", 12),
        ];
        for (text, value) in cases {
            assert_eq!(parse(text), Some(value), "{text}");
        }
    }

    #[test]
    fn invalid_quantities_are_none() {
        for text in
            ["", "-1", "M", "1 M", "1MM", "1.2.3", "ten", "1e", "1e+", "1e--2", "99E", "1e99", ".", "٣"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
