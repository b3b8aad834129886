//! Removes secrets from text: those that are known, and those that their place or their form shows.
//!
//! Known are the contents of the files and variables that this node's settings name ([`super::secrets`]). By their
//! place: the value of a name such as `password` or `token`, the credentials in a URL, what follows `Authorization`. By
//! their form: private keys in PEM, signed tokens. The text is untrusted, and nothing in it may keep a later secret from
//! being found: a quote without an end, or the first part of a key that was cut.

use serde_json::Value;

/// What stands in the place of a secret.
pub const REMOVED: &str = "[removed]";

/// Words of names whose values are secrets.
const WORDS: [&str; 10] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "apikey",
    "privatekey",
    "presharedkey",
    "keydata",
    "credential",
];
/// Whole names of the same.
const NAMES: [&str; 7] =
    ["auth", "authorization", "proxyauthorization", "etcdkey", "psk", "cookie", "setcookie"];
/// How names end whose values say where a secret is, which a reader may know.
const REFERENCES: [&str; 5] = ["file", "path", "dir", "place", "origin"];
/// Values that are no secrets.
const HARMLESS: [&str; 6] = ["", "true", "false", "null", "none", REMOVED];
/// What a pod's CNI arguments are kept of; all others are the operator's.
const CNI_ARGUMENTS: [&str; 7] = [
    "IgnoreUnknown",
    "K8S_POD_NAMESPACE",
    "K8S_POD_NAME",
    "K8S_POD_INFRA_CONTAINER_ID",
    "K8S_POD_UID",
    "IP",
    "MAC",
];
/// A shorter token after `Bearer` is a word.
const TOKEN_MIN_BYTES: usize = 8;

const PEM_BEGIN: &str = "-----BEGIN ";
const PEM_END: &str = "-----END ";
const PRIVATE_KEY: &str = "PRIVATE KEY-----";

/// The secrets that are known, the longest first.
#[derive(Debug, Default)]
pub struct Redactor {
    known: Vec<String>,
}

/// A value in a line, by its place, and what follows its name.
struct Span {
    start: usize,
    end: usize,
}

/// Whether the value of this name is a secret.
pub fn is_secret_name(name: &str) -> bool {
    let plain = plain(name);
    !is_reference(&plain)
        && (WORDS.iter().any(|word| plain.contains(word)) || NAMES.contains(&plain.as_str()))
}

/// Whether the value of this name says in which file a secret is.
pub fn is_secret_file_name(name: &str) -> bool {
    let plain = plain(name);
    let is_about_one = WORDS.iter().any(|word| plain.contains(word)) || plain.contains("key");
    plain == "clientkey" || (is_about_one && is_reference(&plain))
}

fn is_reference(plain: &str) -> bool {
    REFERENCES.iter().any(|end| plain.ends_with(end))
}

/// In lower case, without what separates words.
fn plain(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '_' | '-' | '.')).map(|c| c.to_ascii_lowercase()).collect()
}

// === impl Redactor ===

impl Redactor {
    pub fn new(known: impl IntoIterator<Item = String>) -> Self {
        let mut known: Vec<String> = known.into_iter().collect();
        // What contains another one has to go first.
        known.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        known.dedup();
        Self { known }
    }

    /// How many secrets are known.
    pub fn known(&self) -> usize {
        self.known.len()
    }

    /// The text without secrets.
    pub fn text(&self, text: &str) -> String {
        let without_keys = without_keys(&self.without_known(text.to_owned()));
        without_keys.split_inclusive('\n').map(line).collect()
    }

    /// The same of a JSON document, which stays one; None if it is none.
    pub fn json(&self, text: &str) -> Option<String> {
        let mut value: Value = serde_json::from_str(text).ok()?;
        self.clean(&mut value);
        let clean = serde_json::to_string_pretty(&value).ok()?;
        // A secret can be a number, or a name.
        Some(self.without_known(clean) + "\n")
    }

    fn clean(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                let clean = self.text(text);
                if clean != *text {
                    *text = clean;
                }
            }
            Value::Array(all) => all.iter_mut().for_each(|one| self.clean(one)),
            Value::Object(members) => {
                for (name, value) in members {
                    let is_said = !value.is_null() && !value.is_boolean() && value.as_str() != Some("");
                    match is_said && is_secret_name(name) {
                        true => *value = Value::String(REMOVED.to_owned()),
                        false => self.clean(value),
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn without_known(&self, mut text: String) -> String {
        for secret in &self.known {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), REMOVED);
            }
        }
        text
    }
}

/// Without private keys in PEM. One whose end is missing goes to the end of the text, and of one whose beginning is
/// missing all goes that can be a part of it.
fn without_keys(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(PRIVATE_KEY) {
        let (before, from) = rest.split_at(at);
        let begin = before.rfind(PEM_BEGIN).filter(|begin| is_label(before, begin + PEM_BEGIN.len()));
        let end = before.rfind(PEM_END).filter(|end| is_label(before, end + PEM_END.len()));
        let behind = from.get(PRIVATE_KEY.len()..).unwrap_or_default();
        match (begin, end) {
            (Some(begin), _) => {
                clean.push_str(before.get(..begin).unwrap_or_default());
                clean.push_str(REMOVED);
                rest = behind
                    .find(PRIVATE_KEY)
                    .and_then(|end| behind.get(end + PRIVATE_KEY.len()..))
                    .unwrap_or_default();
            }
            (None, Some(end)) => {
                let before = before.get(..end).unwrap_or_default();
                let is_of_key =
                    |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=' | '\\' | '\r' | '\n');
                clean.push_str(before.trim_end_matches(is_of_key));
                clean.push_str(REMOVED);
                rest = behind;
            }
            (None, None) => {
                clean.push_str(before);
                clean.push_str(PRIVATE_KEY);
                rest = behind;
            }
        }
    }
    clean + rest
}

/// Whether the text from `start` on is the label of PEM before `PRIVATE KEY`: `RSA `, `EC `, or nothing.
fn is_label(text: &str, start: usize) -> bool {
    let is_of_label = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == ' ';
    text.get(start..).is_some_and(|label| label.chars().all(is_of_label))
}

/// One line, with its end.
fn line(line: &str) -> String {
    let mut clean = line.to_owned();
    for step in [
        without_url_credentials,
        without_bearers,
        without_signed_tokens,
        without_cni_arguments,
        without_values,
    ] {
        clean = step(&clean);
    }
    clean
}

/// `scheme://user:password@host` without what is before the `@`.
fn without_url_credentials(line: &str) -> String {
    replaced(line, "://", |rest| {
        let ends = |c: char| c.is_whitespace() || matches!(c, '/' | '"' | '\'' | '<' | '>' | '\\' | ',');
        let authority = rest.get(..rest.find(ends).unwrap_or(rest.len()))?;
        authority.rfind('@').map(|end| (0, end))
    })
}

fn without_bearers(line: &str) -> String {
    replaced(line, "bearer ", |rest| {
        let start = rest.len() - rest.trim_start_matches(' ').len();
        let token = rest.get(start..)?;
        let end = token.find(|c: char| !is_of_token(c)).unwrap_or(token.len());
        (end >= TOKEN_MIN_BYTES).then_some((start, start + end))
    })
}

/// Signed tokens (RFC 7515): their first part is the beginning of a JSON object in base64.
fn without_signed_tokens(line: &str) -> String {
    replaced(line, "eyj", |rest| {
        let end = rest.find(|c: char| !is_of_token(c)).unwrap_or(rest.len());
        (rest.get(..end)?.matches('.').count() >= 2).then_some((0, end))
    })
}

fn is_of_token(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '~' | '+' | '/' | '=' | '-')
}

/// Of `CNI_ARGS` only what every runtime passes.
fn without_cni_arguments(line: &str) -> String {
    const NAME: &str = "CNI_ARGS";
    let mut clean = String::new();
    let mut rest = line;
    while let Some(at) = rest.find(NAME) {
        let (before, from) = rest.split_at(at + NAME.len());
        clean.push_str(before);
        let Some(Span { start, end }) = value(from, false) else {
            rest = from;
            continue;
        };
        let (start, all, behind) = split(from, start, end);
        let kept = all.split(';').map(|one| match one.split_once('=') {
            Some((name, _)) if !CNI_ARGUMENTS.contains(&name) => format!("{REMOVED}={REMOVED}"),
            _ => one.to_owned(),
        });
        clean.push_str(start);
        clean.push_str(&kept.collect::<Vec<_>>().join(";"));
        rest = behind;
    }
    clean + rest
}

fn split(text: &str, start: usize, end: usize) -> (&str, &str, &str) {
    let part = |range: std::ops::Range<usize>| text.get(range).unwrap_or_default();
    (part(0..start), part(start..end), part(end..text.len()))
}

/// Replaces after each occurrence of `mark`, in any case, what `find` names of the rest of the line.
fn replaced(line: &str, mark: &str, find: impl Fn(&str) -> Option<(usize, usize)>) -> String {
    let lower = line.to_ascii_lowercase();
    let (mut clean, mut done) = (String::new(), 0);
    while let Some(at) = lower.get(done..).and_then(|rest| rest.find(mark)) {
        let behind = done + at + mark.len();
        clean.push_str(line.get(done..behind).unwrap_or_default());
        done = behind;
        let rest = line.get(behind..).unwrap_or_default();
        if let Some((start, end)) = find(rest).filter(|(start, end)| start < end) {
            clean.push_str(rest.get(..start).unwrap_or_default());
            clean.push_str(REMOVED);
            done = behind + end;
        }
    }
    clean + line.get(done..).unwrap_or_default()
}

/// Without the values of names that are secret: `name=value`, `"name": "value"`, `--name value`.
fn without_values(line: &str) -> String {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let mut clean = String::new();
    let mut rest = line;
    while let Some(begin) = rest.find(is_of_name) {
        let (before, from) = rest.split_at(begin);
        let (name, behind) = from.split_at(from.find(|c| !is_of_name(c)).unwrap_or(from.len()));
        clean.push_str(before);
        clean.push_str(name);
        rest = behind;
        if !is_secret_name(name) {
            continue;
        }
        let Some(Span { start, end }) = value(behind, name.starts_with("--")) else { continue };
        let end = if plain(name).ends_with("authorization") { header_end(behind, start) } else { end };
        let (between, value, after) = split(behind, start, end);
        clean.push_str(between);
        let is_harmless = HARMLESS.contains(&value.to_ascii_lowercase().as_str());
        clean.push_str(if is_harmless { value } else { REMOVED });
        rest = after;
    }
    clean + rest
}

/// The end of a header's value, which has blanks.
fn header_end(text: &str, start: usize) -> usize {
    let value = text.get(start..).unwrap_or_default();
    start + value.find(['"', '\'', '\\', '\r', '\n']).unwrap_or(value.len())
}

/// The value that follows a name, without its quotes; an option's value may follow a blank only.
fn value(text: &str, is_option: bool) -> Option<Span> {
    let skip = |at: usize, of: &[char]| {
        let rest = text.get(at..).unwrap_or_default();
        text.len() - rest.trim_start_matches(|c| of.contains(&c)).len()
    };
    let at = skip(skip(0, &['\\']), &['"', '\'']);
    let separator = skip(at, &[' ', '\t']);
    let start = match text.get(separator..)?.starts_with([':', '=']) {
        true => skip(skip(separator, &[':', '=']), &[' ', '\t']),
        false if is_option && separator > at => separator,
        false => return None,
    };
    let rest = text.get(start..)?;
    for quote in ["\\\"", "\"", "'"] {
        if let Some(quoted) = rest.strip_prefix(quote) {
            let start = start + quote.len();
            return Some(Span { start, end: start + quoted_end(quoted, quote) });
        }
    }
    let end = match rest.starts_with(['[', '{', '(']) {
        // A list: where it ends is not worth a mistake.
        true => rest.trim_end_matches(['\r', '\n']).len(),
        false => bare_end(rest),
    };
    Some(Span { start, end: start + end })
}

/// Where a quoted value ends. One without an end goes to the end of the line.
fn quoted_end(quoted: &str, quote: &str) -> usize {
    let line_end = quoted.trim_end_matches(['\r', '\n']).len();
    if quote.len() > 1 {
        return quoted.find(quote).unwrap_or(line_end);
    }
    let mut chars = quoted.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            // Escaped as in JSON, or as in YAML.
            '\\' => drop(chars.next()),
            '\'' if quote == "'" && chars.next_if(|(_, next)| *next == '\'').is_some() => {}
            c if quote.starts_with(c) => return at,
            _ => {}
        }
    }
    line_end
}

/// Where a value without quotes ends; what is quoted within it belongs to it.
fn bare_end(text: &str) -> usize {
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (c, quote) {
            ('\r' | '\n', _) => return at,
            (c, Some(open)) if c == open => quote = None,
            (_, Some(_)) => {}
            ('"' | '\'', None) if at > 0 => quote = Some(c),
            (c, None) if c.is_whitespace() || matches!(c, ',' | ';' | '}' | '&') => return at,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests;
