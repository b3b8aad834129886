//! Converts foreign settings to files. Called by `main.rs` with committed inputs, and by cargo-fuzz
//! (fuzz/).

use std::net::IpAddr;

use russet_sandbox::{Config, Dns};

/// Returns whether a sandbox's configuration is valid. Each line of its resolv.conf is one key and
/// the configured words: no setting can add a line or a word.
pub fn resolv_conf(bytes: &[u8]) -> bool {
    let Ok(config) = serde_json::from_slice::<Config>(bytes) else { return false };
    if config.validate().is_err() {
        return false;
    }
    if let Some(dns) = &config.dns {
        reads_as_asked(&dns.resolv_conf(), dns);
    }
    true
}

fn reads_as_asked(text: &str, dns: &Dns) {
    let mut read = Dns::default();
    for line in text.lines() {
        let (key, rest) = line.split_once(' ').unwrap();
        let mut words = rest.split(' ').map(str::to_owned);
        match key {
            "nameserver" => read.servers.push(rest.parse::<IpAddr>().unwrap()),
            "search" if read.searches.is_empty() => read.searches.extend(words.by_ref()),
            "options" if read.options.is_empty() => read.options.extend(words.by_ref()),
            other => panic!("{other:?} in {text:?}"),
        }
    }
    assert_eq!(&read, dns);
}
