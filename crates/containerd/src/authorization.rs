//! Answers a registry's 401: with a password, or with a token that another server issues for one
//! (RFC 7235; the distribution specification's token authentication).

/// One challenge of `WWW-Authenticate`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// User name and password.
    Basic,
    /// A token of another server.
    Bearer {
        /// The URL of the token server.
        realm: String,
        service: Option<String>,
        /// What it shall allow.
        scope: Option<String>,
    },
}

// === impl Challenge ===

impl Challenge {
    /// Parses a header; None if the challenge is not supported.
    pub(crate) fn parse(header: &str) -> Option<Self> {
        let header = header.trim();
        let (scheme, rest) = header.split_once(' ').unwrap_or((header, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let parameters = parameters(rest);
        let get = |name: &str| {
            let found = parameters.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.clone())
        };
        Some(Self::Bearer { realm: get("realm")?, service: get("service"), scope: get("scope") })
    }

    /// The URL of the token, for read access to a repository.
    pub(crate) fn token_url(
        realm: &str,
        service: Option<&str>,
        scope: Option<&str>,
        repository: &str,
    ) -> String {
        let scope = scope.map_or_else(|| format!("repository:{repository}:pull"), str::to_owned);
        let mut url = realm.to_owned();
        url.push(if realm.contains('?') { '&' } else { '?' });
        if let Some(service) = service {
            url.push_str(&format!("service={}&", escaped(service)));
        }
        url.push_str(&format!("scope={}", escaped(&scope)));
        url
    }
}

/// `key="value",key=value`; in quotes a backslash escapes the next character.
fn parameters(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut letters = text.chars().peekable();
    loop {
        while letters.next_if(|letter| matches!(letter, ' ' | ',' | '\t')).is_some() {}
        let mut key = String::new();
        while let Some(letter) = letters.next_if(|letter| !matches!(letter, '=' | ',')) {
            key.push(letter);
        }
        if letters.next_if_eq(&'=').is_none() {
            return found;
        }
        let mut value = String::new();
        if letters.next_if_eq(&'"').is_some() {
            while let Some(letter) = letters.next().filter(|letter| *letter != '"') {
                let letter = if letter == '\\' { letters.next() } else { Some(letter) };
                value.extend(letter);
            }
        } else {
            while let Some(letter) = letters.next_if(|letter| *letter != ',') {
                value.push(letter);
            }
        }
        found.push((key.trim().to_owned(), value));
    }
}

fn escaped(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' | b'/' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02X}"),
    };
    text.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read_as_registries_write_them() {
        assert_eq!(Challenge::parse("Basic realm=\"x\""), Some(Challenge::Basic));
        assert_eq!(Challenge::parse("basic"), Some(Challenge::Basic));
        let header = r#"Bearer realm="https://auth.example/token?a=b",service="reg, \"one\"",scope="repository:x:pull""#;
        let bearer = Challenge::Bearer {
            realm: "https://auth.example/token?a=b".into(),
            service: Some("reg, \"one\"".into()),
            scope: Some("repository:x:pull".into()),
        };
        assert_eq!(Challenge::parse(header), Some(bearer));
        for none in ["", "Digest realm=\"x\"", "Bearer", "Bearer service=x", "Bearer =", "Bearer realm"] {
            assert_eq!(Challenge::parse(none), None, "{none}");
        }
    }

    #[test]
    fn a_token_request_has_the_challenges_parameters() {
        let url = Challenge::token_url("https://a/t?x=1", Some("my reg&"), None, "team/app");
        assert_eq!(url, "https://a/t?x=1&service=my%20reg%26&scope=repository:team/app:pull");
        assert_eq!(Challenge::token_url("https://a/t", None, Some("s"), "x"), "https://a/t?scope=s");
    }
}
