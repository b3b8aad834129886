//! Foreign text within XML, HTML and DOT.

/// Longer texts are cut: a name of Kubernetes has at most 253 characters.
pub const TEXT_MAX_CHARS: usize = 512;

/// `text` as the content of an element or of a quoted attribute of XML or HTML. Characters that XML does not allow, control characters among
/// them, are shown as escapes.
pub fn xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in cut(text, TEXT_MAX_CHARS).chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push_str(&shown(c)),
        }
    }
    escaped
}

/// `text` as a quoted string of DOT that is no HTML string. A label is processed once more, so that `\N` would be the node's name: backslashes
/// are doubled, which also keeps one at the end from escaping the quotation mark.
pub fn dot(text: &str) -> String {
    let inner: String = cut(text, TEXT_MAX_CHARS).chars().map(dot_char).collect();
    format!("\"{inner}\"")
}

/// Lines of one label in DOT.
pub fn dot_lines(lines: &[String]) -> String {
    let escape = |line: &String| cut(line, TEXT_MAX_CHARS).chars().map(dot_char).collect::<String>();
    format!("\"{}\"", lines.iter().map(escape).collect::<Vec<_>>().join("\\n"))
}

fn dot_char(c: char) -> String {
    match c {
        '"' => "\\\"".to_owned(),
        // An escape that `shown` makes of a control character begins with a backslash, too.
        c => shown(c).replace('\\', "\\\\"),
    }
}

/// The first `max` characters, with an ellipsis in the place of the rest.
pub fn cut(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        None => text.to_owned(),
        Some(_) => text.chars().take(max.saturating_sub(1)).chain(['\u{2026}']).collect(),
    }
}

/// A character, or an escape in its place: control characters move terminals' cursors and are not allowed in XML; characters that change the
/// direction of the text around them make it look like another one.
fn shown(c: char) -> String {
    let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    match c {
        c if c.is_control() || turns => c.escape_default().to_string(),
        '\u{fffe}' | '\u{ffff}' => '\u{fffd}'.to_string(),
        c => c.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_and_control_characters_are_only_text() {
        assert_eq!(
            xml("<script>alert('1' & \"2\")</script>\u{1b}"),
            "&lt;script&gt;alert(&#39;1&#39; &amp; &quot;2&quot;)&lt;/script&gt;\\u{1b}"
        );
        assert_eq!(xml("a\u{202e}b\u{ffff}"), "a\\u{202e}b\u{fffd}");
        assert_eq!(xml(&"\u{e9}".repeat(9000)).chars().count(), TEXT_MAX_CHARS);
    }

    #[test]
    fn no_text_ends_a_string_of_dot() {
        assert_eq!(dot(r#"a" ]; evil [label=""#), r#""a\" ]; evil [label=\"""#);
        assert_eq!(dot("a\\"), r#""a\\""#);
        assert_eq!(dot("\\N\n<b>"), r#""\\N\\n<b>""#);
        assert_eq!(dot_lines(&["a\"".to_owned(), "b".to_owned()]), r#""a\"\nb""#);
    }
}
