//! Replaces private parts of texts: hosts, addresses, keys and their paths, secrets.
//!
//! The same value gets the same name everywhere, like `host-1`, so that a reader can connect its
//! occurrences. A value that one text reveals, as a URI does its host, is replaced in all texts:
//! first [`Redactor::learn`] sees every text, then [`Redactor::redact`].

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::LazyLock;

use regex::{Captures, Regex};

/// The stand-in for a secret.
const REDACTED: &str = "[redacted]";

/// Parameters of URIs that are no secrets.
const PLAIN: [&str; 7] = ["socket", "reconnect", "timeout", "size", "sizes", "ram", "volume"];

/// Hosts that reveal nothing.
const PLAIN_HOSTS: [&str; 3] = ["localhost", "forebay", ""];

macro_rules! patterns {
    ($($name:ident $text:literal;)*) => {
        $(static $name: LazyLock<Regex> =
            LazyLock::new(|| Regex::new($text).expect("a pattern of this program"));)*
    };
}

patterns! {
    PEM r"-----BEGIN [A-Z0-9 ]+-----(?s:.*?)(?:-----END [A-Z0-9 ]+-----|\z)";
    URI r#"\b([A-Za-z][A-Za-z0-9+.-]*)://([^/\s"'?#\\<>]*)"#;
    PARAMETER r#"([?&])([A-Za-z0-9_.-]+)=([^&\s"'\\]*)"#;
    CERTIFICATES r#"[?&]tls-certificates=([^&\s"'\\]+)"#;
    TLS_OPTION r#"(--nbd-tls-(?:key|cert|client-ca))(?:=|\s+)("[^"]*"|[^\s"]+)"#;
    SECRET r#"(?i)\b([a-z0-9_.-]*(?:password|passwd|passphrase|secret|token|psk|api[_-]?key|private[_-]?key|credential)[a-z0-9_-]*)(\\?"?\s*[=:]\s*)(\\?"[^"]*"|'[^']*'|[^\s",;}]+)"#;
    BEARER r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=._~-]{8,}";
    KEY_FILE r#"[^\s"'=:,;(){}\[\]<>]*\.(?:pem|key|crt|cer|p12|pfx|psk)\b"#;
    MAIL r"[A-Za-z0-9._%+-]+@([A-Za-z0-9.-]+\.[A-Za-z]{2,})";
    HOME r"(/home)/([A-Za-z0-9._-]+)";
    WORD r"[0-9A-Za-z:.%_-]+";
}

/// See the module.
#[derive(Default)]
pub(super) struct Redactor {
    /// Stand-ins by the words that they replace wherever these stand.
    words: BTreeMap<String, String>,
    /// The names that were given to values, by their kind.
    names: BTreeMap<&'static str, Vec<String>>,
}

impl Redactor {
    /// Has a host replaced wherever its name stands.
    pub(super) fn host(&mut self, name: &str) {
        let name = name.trim_start_matches('[').trim_end_matches(']');
        if !PLAIN_HOSTS.contains(&name) && name.parse::<IpAddr>().is_err() {
            let stand_in = self.name_of("host", name);
            self.words.insert(name.to_owned(), stand_in);
        }
    }

    /// Has a path to keys replaced wherever it stands.
    pub(super) fn key_path(&mut self, path: &str) {
        let path = path.trim_matches('"').trim_end_matches('/');
        if path.len() > 1 {
            self.words.insert(path.to_owned(), "[keys]".to_owned());
        }
    }

    /// Notes the values of a text that have to be replaced in every text.
    pub(super) fn learn(&mut self, text: &str) {
        for found in URI.captures_iter(text) {
            let (_, host, _) = authority(&found[2]);
            self.host(host);
        }
        for found in CERTIFICATES.captures_iter(text) {
            self.key_path(&found[1]);
            let decoded = form_urlencoded::parse(format!("x={}", &found[1]).as_bytes())
                .map(|(_, value)| value.into_owned())
                .collect::<String>();
            self.key_path(&decoded);
        }
        for found in TLS_OPTION.captures_iter(text) {
            self.key_path(&found[2]);
        }
    }

    /// Returns a text with its secrets replaced.
    pub(super) fn redact(&mut self, text: &str) -> String {
        let text = PEM.replace_all(text, "[key or certificate]");
        let text = TLS_OPTION.replace_all(&text, "$1 [keys]");
        let text = SECRET.replace_all(&text, |found: &Captures<'_>| {
            format!("{}{}{}", &found[1], &found[2], quoted(&found[3]))
        });
        let text = BEARER.replace_all(&text, format!("$1 {REDACTED}"));
        let text = URI.replace_all(&text, |found: &Captures<'_>| self.uri(&found[1], &found[2]));
        let text = PARAMETER.replace_all(&text, |found: &Captures<'_>| {
            let value = if PLAIN.contains(&&found[2]) { &found[3] } else { REDACTED };
            format!("{}{}={value}", &found[1], &found[2])
        });
        let text = self.words(text.into_owned());
        let text = KEY_FILE.replace_all(&text, "[key file]");
        let text = MAIL.replace_all(&text, |found: &Captures<'_>| match is_unit(&found[1]) {
            true => found[0].to_owned(),
            false => "[mail address]".to_owned(),
        });
        let text = HOME.replace_all(&text, |found: &Captures<'_>| {
            format!("{}/{}", &found[1], self.name_of("user", &found[2]))
        });
        WORD.replace_all(&text, |found: &Captures<'_>| self.address(&found[0]).into_owned())
            .into_owned()
    }

    fn name_of(&mut self, kind: &'static str, value: &str) -> String {
        let known = self.names.entry(kind).or_default();
        let at = known.iter().position(|there| there == value).unwrap_or_else(|| {
            known.push(value.to_owned());
            known.len() - 1
        });
        format!("{kind}-{}", at + 1)
    }

    fn uri(&mut self, scheme: &str, text: &str) -> String {
        let (user, host, port) = authority(text);
        let user = if user { "[user]@" } else { "" };
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let host = match bare.parse::<IpAddr>() {
            // It is replaced with all addresses.
            Ok(_) => host.to_owned(),
            Err(_) if PLAIN_HOSTS.contains(&bare) => host.to_owned(),
            Err(_) => self.name_of("host", bare),
        };
        format!("{scheme}://{user}{host}{port}")
    }

    /// Replaces learnt words, the longest first, where they are no part of a longer word.
    fn words(&self, mut text: String) -> String {
        let mut words: Vec<(&String, &String)> = self.words.iter().collect();
        words.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
        for (word, stand_in) in words {
            let mut rest = &*text;
            let mut replaced = String::new();
            while let Some(at) = rest.find(&**word) {
                let (before, after) = (&rest[..at], &rest[at + word.len()..]);
                let part = |text: Option<char>| text.is_some_and(char::is_alphanumeric);
                let is_whole = !part(before.chars().next_back()) && !part(after.chars().next());
                replaced.push_str(before);
                replaced.push_str(if is_whole { stand_in } else { word });
                rest = after;
            }
            replaced.push_str(rest);
            text = replaced;
        }
        text
    }

    /// Replaces a word that is an address, perhaps with a port.
    fn address<'a>(&mut self, word: &'a str) -> Cow<'a, str> {
        let bare = word.trim_end_matches([':', '.', '-']);
        let end = &word[bare.len()..];
        let (zoneless, _) = bare.split_once('%').unwrap_or((bare, ""));
        if let Ok(address) = zoneless.parse::<IpAddr>() {
            return match address.is_loopback() || address.is_unspecified() {
                true => word.into(),
                false => format!("{}{end}", self.name_of("address", zoneless)).into(),
            };
        }
        if let Some((host, port)) = bare.rsplit_once(':')
            && port.parse::<u16>().is_ok()
            && host
                .parse::<std::net::Ipv4Addr>()
                .is_ok_and(|it| !it.is_loopback() && !it.is_unspecified())
        {
            return format!("{}:{port}{end}", self.name_of("address", host)).into();
        }
        let parts: Vec<&str> = bare.split([':', '-']).collect();
        let is_pair = |part: &&str| part.len() == 2 && u8::from_str_radix(part, 16).is_ok();
        if parts.len() == 6 && parts.iter().all(is_pair) {
            return format!("{}{end}", self.name_of("address", bare)).into();
        }
        word.into()
    }
}

/// Splits the part of a URI behind `://`: whether it names a user, the host, and the port with its
/// colon.
fn authority(text: &str) -> (bool, &str, &str) {
    let (user, rest) = match text.rsplit_once('@') {
        Some((_, rest)) => (true, rest),
        None => (false, text),
    };
    let after = rest.rfind(']').map_or(0, |at| at + 1);
    let port = rest[after..].find(':').map_or(rest.len(), |at| after + at);
    (user, &rest[..port], &rest[port..])
}

/// Returns the stand-in for a value, in quotation marks if the value has some.
fn quoted(value: &str) -> String {
    let quote = |mark: &str| format!("{mark}{REDACTED}{mark}");
    match value {
        value if value.starts_with("\\\"") => format!("\\\"{REDACTED}\\\""),
        value if value.starts_with('"') => quote("\""),
        value if value.starts_with('\'') => quote("'"),
        _ => REDACTED.to_owned(),
    }
}

/// Whether the part behind `@` is that of a unit of systemd.
fn is_unit(text: &str) -> bool {
    [".service", ".socket", ".device", ".target", ".mount", ".scope", ".slice"]
        .iter()
        .any(|end| text.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redacted(text: &str) -> String {
        let mut redactor = Redactor::default();
        redactor.host("db7.example.com");
        redactor.learn(text);
        redactor.redact(text)
    }

    #[test]
    fn private_values_are_replaced() {
        for (text, expected) in [
            ("nbd://disks.example.org/data", "nbd://host-2/data"),
            (
                "nbds://disks:10810/e?tls-certificates=/etc/k%20eys&timeout=5",
                "nbds://host-2:10810/e?tls-certificates=[redacted]&timeout=5",
            ),
            (
                "cannot read /srv/k/ca: nbds://d/?tls-certificates=/srv/k",
                "cannot read [keys]/ca: nbds://host-2/?tls-certificates=[redacted]",
            ),
            ("nbd+unix:///d?socket=/run/s", "nbd+unix:///d?socket=/run/s"),
            ("rbd://alice:hunter2@ceph/pool?key=AQB", "rbd://[user]@host-2/pool?key=[redacted]"),
            (
                "nbd://disks/a and then disks:10809 is gone",
                "nbd://host-2/a and then host-2:10809 is gone",
            ),
            ("floppydisks stay, nbd://disks/", "floppydisks stay, nbd://host-2/"),
            ("on db7.example.com it failed", "on host-1 it failed"),
            (
                "from 192.0.2.7:4711, then 192.0.2.7 and 198.51.100.1.",
                "from address-1:4711, then address-1 and address-2.",
            ),
            ("nbd://[2001:db8::5]:10809/x", "nbd://[address-1]:10809/x"),
            ("peer=fe80::1%eth0 mac aa:bb:cc:00:11:22", "peer=address-1 mac address-2"),
            (
                "--nbd-tls-key /etc/nbd/a --nbd-tls-cert=/b/c x",
                "--nbd-tls-key [keys] --nbd-tls-cert [keys] x",
            ),
            ("reading /etc/ssl/private/host.key failed", "reading [key file] failed"),
            (r#"{"password": "correct horse", "a": 1}"#, r#"{"password": "[redacted]", "a": 1}"#),
            ("RBD_SECRET=abc; auth_token: xyz", "RBD_SECRET=[redacted]; auth_token: [redacted]"),
            ("Authorization: Bearer abcdefghijkl", "Authorization: Bearer [redacted]"),
            (
                "x -----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY----- y",
                "x [key or certificate] y",
            ),
            ("-----BEGIN PRIVATE KEY-----\nMIItorn", "[key or certificate]"),
            ("of alice@example.com", "of [mail address]"),
        ] {
            assert_eq!(redacted(text), expected, "{text}");
        }
    }

    #[test]
    fn users_are_not_named() {
        let home = "/home";
        let text = format!("{home}/alice/disk.img, {home}/bob/disk.img and {home}/alice/x");
        let expected =
            format!("{home}/user-1/disk.img, {home}/user-2/disk.img and {home}/user-1/x");
        assert_eq!(redacted(&text), expected);
    }

    #[test]
    fn facts_that_a_reader_needs_stay() {
        for text in [
            "forebay::daemon: ready at 12:30:45.123, version 6.12.9-amd64",
            "127.0.0.1:9809, ::1, 0.0.0.0 and [::]:10809",
            "http://localhost/v1/volumes/v/curve?sizes=1G",
            "modprobe@fuse.service",
            "volume=\"v\" error=/dev/sdb: read failed at byte 4096: Input/output error (os error 5)",
            "6f9619ff-8b86-d011-b42d-00cf4fc964ff",
            r#"{"id":1764093600000000,"time":"2026-01-31T15:04:05Z"}"#,
        ] {
            assert_eq!(redacted(text), text);
        }
    }
}
