//! Finds the known name that a misspelt one probably means.

/// The known name nearest to `word`, if it is near enough.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    // A short word is near to every name.
    let near = if word.chars().count() < 5 { 1 } else { 2 };
    let distances = known.into_iter().map(|name| (distance(&lower, &name.to_lowercase()), name));
    distances
        .filter(|(distance, _)| *distance <= near)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// The edit distance. Keys are short; the longest are truncated.
fn distance(one: &str, other: &str) -> usize {
    const MAX_CHARS: usize = 64;
    let other: Vec<char> = other.chars().take(MAX_CHARS).collect();
    // The row above, without its first column, which counts the letters of `one`.
    let mut row: Vec<usize> = (1..=other.len()).collect();
    let mut result = other.len();
    for (i, a) in one.chars().take(MAX_CHARS).enumerate() {
        let (mut corner, mut left) = (i, i + 1);
        for (above, b) in row.iter_mut().zip(&other) {
            let exchanged = corner + usize::from(a != *b);
            corner = *above;
            left = exchanged.min(corner + 1).min(left + 1);
            *above = left;
        }
        result = left;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelling_is_matched_and_another_word_is_not() {
        let known = ["capabilities", "ipam", "mtu"];
        assert_eq!(nearest("capabilites", known), Some("capabilities"));
        assert_eq!(nearest("IPAM", known), Some("ipam"));
        assert_eq!(nearest("mut", known), None);
        assert_eq!(nearest("bridge", known), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
