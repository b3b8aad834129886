//! What turns others' settings into files. Called by `main.rs` with committed inputs, and by cargo-fuzz (fuzz/).

use std::net::IpAddr;

use russet_sandbox::{Config, Dns};

/// A sandbox's configuration; whether it is one that is taken. Of its resolv.conf each line is one key and the words that were asked for: no setting brings
/// in a line or a word of its own.
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
