//! Parses values like Go's `flag` package.

/// `strconv.ParseBool`.
pub fn boolean(text: &str) -> Result<bool, &'static str> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("parse error"),
    }
}

/// `strconv.ParseInt` with base 0: prefixes 0x, 0o, 0b and 0, and underscores between digits.
pub fn integer(text: &str) -> Result<i64, &'static str> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let prefixed = |(radix, prefix)| Some((radix, lower.strip_prefix(prefix)?));
    let octal = || lower.strip_prefix('0').filter(|body| !body.is_empty()).map(|body| (8, body));
    let (radix, body) = [(16, "0x"), (8, "0o"), (2, "0b")]
        .into_iter()
        .find_map(prefixed)
        .or_else(octal)
        .unwrap_or((10, lower.as_str()));
    // Behind a prefix an underscore may come first, because the prefix counts as a digit.
    let body = if body.len() < lower.len() { body.strip_prefix('_').unwrap_or(body) } else { body };
    let groups_are_whole = body.split('_').all(|group| !group.is_empty());
    let plain: String = body.chars().filter(|digit| *digit != '_').collect();
    if !groups_are_whole || !plain.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err("parse error");
    }
    let number = i128::from_str_radix(&plain, radix).map_err(|error| match error.kind() {
        std::num::IntErrorKind::PosOverflow => "value out of range",
        _ => "parse error",
    })?;
    i64::try_from(if negative { -number } else { number }).map_err(|_| "value out of range")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// flannel.md section 1.1.
    #[test]
    fn booleans_and_integers_are_read_as_go_reads_them() {
        for text in ["1", "t", "T", "true", "TRUE", "True"] {
            assert_eq!(boolean(text), Ok(true), "{text}");
        }
        for text in ["0", "f", "F", "false", "FALSE", "False"] {
            assert_eq!(boolean(text), Ok(false), "{text}");
        }
        for text in ["", "yes", "tRUE", "2", " true"] {
            assert_eq!(boolean(text), Err("parse error"), "{text}");
        }
        for (text, number) in [
            ("60", 60),
            ("-5", -5),
            ("+7", 7),
            ("0", 0),
            ("0x3C", 60),
            ("0o74", 60),
            ("074", 60),
            ("0b111100", 60),
            ("1_000", 1000),
            ("0x_ff", 255),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(integer(text), Ok(number), "{text}");
        }
        for text in ["", "-", "abc", "1__0", "_1", "1_", "0x", "09", "0b2", "1.5", "1 ", "--1", "0x-1", "ä"]
        {
            assert_eq!(integer(text), Err("parse error"), "{text}");
        }
        for text in ["9223372036854775808", "0xffffffffffffffffffffffffffffffffffff"] {
            assert_eq!(integer(text), Err("value out of range"), "{text}");
        }
    }
}
