//! Policies as YAML, with a comment before each rule.

use russet_verdict::recommend::{Recommendation, Recommended};

use crate::output::{json, visible, yaml_of_json};

/// The line with which each item of `spec.ingress` and `spec.egress` begins.
const ITEM: &str = "    -";

/// All policies, each a document.
pub fn yaml(found: &Recommendation) -> String {
    found.policies.iter().map(policy).collect()
}

fn policy(policy: &Recommended) -> String {
    let mut text = "---\n".to_owned();
    policy.comments.iter().for_each(|it| comment(&mut text, "", it));
    let mut member = String::new();
    let mut index = 0;
    for line in yaml_of_json(&json(&policy.document())).lines() {
        if let Some(name) = line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')) {
            (member, index) = (name.trim_end_matches(':').to_owned(), 0);
        } else if line == ITEM {
            let rule = policy.rules().find(|(of, place, _)| *of == member && *place == index);
            rule.iter().flat_map(|(.., rule)| &rule.comments).for_each(|it| comment(&mut text, "    ", it));
            index += 1;
        }
        text.push_str(&format!("{line}\n"));
    }
    text
}

/// A comment is one line, whatever the names in it are.
fn comment(text: &mut String, indent: &str, comment: &str) {
    text.push_str(&format!("{indent}# {}\n", visible(comment)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_ends_the_comment_that_it_is_in_or_turns_it() {
        let mut text = String::new();
        let evil = "a\u{2028}b\u{2029}c\u{85}d\u{feff}e\u{202e}f\u{2066}g\u{61c}h\u{200f}i\rj\nk: \u{e9}";
        comment(&mut text, "  ", evil);
        let shown = r"a\u{2028}b\u{2029}c\u{85}d\u{feff}e\u{202e}f\u{2066}g\u{61c}h\u{200f}i\rj\nk: ";
        assert_eq!(text, format!("  # {shown}\u{e9}\n"));
    }
}
