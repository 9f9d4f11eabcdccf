//! The declaration of all volumes, `forebay.toml`: from text to requests. Pure.
//!
//! ```toml
//! [volumes.data]
//! cache = "/dev/disk/by-id/SSD"
//! origin = "/dev/disk/by-id/DISK"
//! export = "fuse"
//! dirty_high = 60
//! ```

use std::ops::Range;

use forebay_core::text::nearest;
use forebay_core::{BlockSize, SECTOR_SIZE, parse_size};
use forebay_settings::error::shortened;
use forebay_settings::{Assignments, SETTINGS, Scope, Setting};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::one_line;
use crate::name::VolumeName;
use crate::request::CreateRequest;

/// The one table at the top.
const VOLUMES: &str = "volumes";

/// Keys of a volume that are no settings.
const KEYS: &str = "cache, origin, profile, block_size, alignment, serve";

/// A declared volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// The request that creates it, without force.
    pub request: CreateRequest,
    /// Whether it is to be served.
    pub serve: bool,
    /// Its keys with their lines, from 1; the first is its name.
    lines: Vec<(String, usize)>,
}

impl Declared {
    /// Returns its name.
    pub fn name(&self) -> &VolumeName {
        &self.request.name
    }

    /// Whether the key is there.
    pub fn has(&self, key: &str) -> bool {
        self.lines.iter().skip(1).any(|(present, _)| present == key)
    }

    /// Returns the line of a key, or that of the volume.
    pub fn line_of(&self, key: &str) -> usize {
        let mut lines = self.lines.iter();
        let first = lines.next().map_or(1, |(_, line)| *line);
        lines.find(|(present, _)| present == key).map_or(first, |(_, line)| *line)
    }

    /// Returns the settings that the file decides, each once: its own, and those of the profile
    /// that volumes of one cache do not share.
    pub fn decided(&self) -> Vec<&'static Setting> {
        let own = self.request.settings.iter().map(|(name, _)| name);
        let profile = self.request.profile.map_or(&[][..], |name| name.profile().settings);
        let mut decided: Vec<&'static Setting> =
            own.filter_map(|name| Setting::find(name).ok()).collect();
        for choice in profile {
            if let Ok(setting) = Setting::find(choice.setting)
                && setting.scope == Scope::Volume
                && !decided.iter().any(|other| other.name == setting.name)
            {
                decided.push(setting);
            }
        }
        decided
    }
}

/// Why a declaration was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct DeclarationError {
    /// The line, from 1.
    pub line: usize,
    /// The problem with the name of the key and the remedy, in one line.
    pub message: String,
}

/// Parses a declaration; the volumes are in the order of the file.
///
/// # Errors
/// It is not TOML, or has an unknown or duplicate key or a bad value; with the line and the key.
pub fn parse(text: &str) -> Result<Vec<Declared>, DeclarationError> {
    let text = DeclarationText(text);
    let document = DeTable::parse(text.0).map_err(|error| text.broken(&error))?;
    let mut volumes = Vec::new();
    for (key, value) in document.get_ref() {
        let name = key.get_ref();
        if name != VOLUMES {
            let reason = format!("unknown key; volumes are declared like [{VOLUMES}.data]");
            return Err(text.wrong(key.span(), name, &reason));
        }
        let DeValue::Table(table) = value.get_ref() else {
            return Err(text.wrong(key.span(), name, "write it as tables, like [volumes.data]"));
        };
        for (key, value) in table {
            let name = key.get_ref();
            let DeValue::Table(table) = value.get_ref() else {
                let reason = format!("write it as a table, [{VOLUMES}.{}]", shortened(name));
                return Err(text.wrong(key.span(), name, &reason));
            };
            volumes.push((key.span().start, text.volume(key.span(), name, table)?));
        }
    }
    volumes.sort_by_key(|(start, _)| *start);
    let volumes: Vec<Declared> = volumes.into_iter().map(|(_, volume)| volume).collect();
    Ok(volumes)
}

/// The text of a declaration, for the places of errors.
struct DeclarationText<'a>(&'a str);

impl DeclarationText<'_> {
    fn line(&self, at: usize) -> usize {
        let before = self.0.as_bytes().get(..at).unwrap_or(self.0.as_bytes());
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    fn wrong(&self, span: Range<usize>, key: &str, reason: &str) -> DeclarationError {
        let message = one_line(&format!("{}: {reason}", shortened(key)));
        DeclarationError { line: self.line(span.start), message }
    }

    /// Converts an error of the parser, which knows the key at fault by its place alone.
    fn broken(&self, error: &toml::de::Error) -> DeclarationError {
        let span = error.span().unwrap_or(0..0);
        match self.0.get(span.clone()).map(str::trim) {
            Some(place) if !place.is_empty() => self.wrong(span, place, error.message()),
            _ => {
                DeclarationError { line: self.line(span.start), message: one_line(error.message()) }
            }
        }
    }

    fn volume(
        &self,
        span: Range<usize>,
        name: &str,
        table: &DeTable<'_>,
    ) -> Result<Declared, DeclarationError> {
        let bad_name =
            |error: crate::name::NameError| self.wrong(span.clone(), VOLUMES, &error.to_string());
        let request = CreateRequest {
            name: name.parse().map_err(bad_name)?,
            cache: None,
            origin: String::new(),
            profile: None,
            block_size: None,
            alignment: 0,
            force: false,
            adopt: false,
            stored_as: None,
            settings: Assignments::default(),
        };
        let lines = vec![(name.to_owned(), self.line(span.start))];
        let mut volume = Declared { request, serve: true, lines };
        let mut keys: Vec<_> = table.iter().collect();
        keys.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in keys {
            let at = key.span();
            self.key(&mut volume, key.get_ref(), value)
                .map_err(|reason| self.wrong(at.clone(), key.get_ref(), &reason))?;
            volume.lines.push((key.get_ref().to_string(), self.line(at.start)));
        }
        if volume.request.origin.is_empty() {
            let reason = format!(
                "the volume has no origin; add a line like origin = \"/dev/sdb\" to [{VOLUMES}.{name}]"
            );
            return Err(self.wrong(span, name, &reason));
        }
        Ok(volume)
    }

    /// Takes one key of a volume; an error is the reason alone.
    fn key(
        &self,
        volume: &mut Declared,
        key: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<(), String> {
        let text = plain(value.get_ref())?;
        let request = &mut volume.request;
        match key {
            "cache" => request.cache = Some(text),
            "origin" if text.is_empty() => return Err("name a file or a block device".to_owned()),
            "origin" => request.origin = text,
            "profile" => {
                let profile = text.parse();
                request.profile = Some(
                    profile.map_err(|error: crate::profiles::ProfileError| error.to_string())?,
                );
            }
            "block_size" => {
                let bytes = parse_size(&text).map_err(|error| error.to_string())?;
                let reason = "choose a power of two from 2K to 1M";
                request.block_size =
                    Some(BlockSize::new(bytes).ok_or_else(|| reason.to_owned())?.bytes());
            }
            "alignment" => {
                let bytes = parse_size(&text).map_err(|error| error.to_string())?;
                if !bytes.is_multiple_of(SECTOR_SIZE) {
                    return Err(format!("give a multiple of {SECTOR_SIZE} below the block size"));
                }
                request.alignment = bytes;
            }
            "serve" => {
                let DeValue::Boolean(serve) = value.get_ref() else {
                    return Err("give true or false".to_owned());
                };
                volume.serve = *serve;
            }
            _ => {
                if Setting::find(key).is_err() {
                    let settings = SETTINGS.iter().map(|setting| setting.name);
                    return Err(match nearest(key, KEYS.split(", ").chain(settings)) {
                        Some(meant) => format!("unknown key; did you mean '{meant}'?"),
                        None => format!(
                            "unknown key; a volume has {KEYS} and the settings of 'forebay set --help'"
                        ),
                    });
                }
                request.settings.push_typed(key, &text).map_err(|error| {
                    let message = error.to_string();
                    message.strip_prefix(&format!("{key}: ")).unwrap_or(&message).to_owned()
                })?;
            }
        }
        Ok(())
    }
}

/// Returns a plain value as text.
fn plain(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Boolean(value) => Ok(value.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
        _ => Err("give a text in quotation marks, a whole number, true or false".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_declaration_becomes_requests_in_the_order_of_the_file() {
        let volumes = parse(
            "# comment\n[volumes.zeta]\norigin = '/o'\nram = \"1G\"\nserve = false\n\n[volumes.alpha]\ncache = \"/c\"\n\
             origin = \"/p\"\nprofile = \"bcache\"\nblock_size = \"8K\"\nalignment = 512\nexport = \"fuse\"\nordered = true\n\
             dirty_high = 60\n",
        )
        .expect("good");
        let [zeta, alpha] = volumes.as_slice() else { panic!("two volumes") };
        assert_eq!((zeta.name().as_str(), zeta.serve, alpha.serve), ("zeta", false, true));
        assert_eq!((zeta.line_of("ram"), zeta.line_of("cache"), zeta.has("cache")), (4, 2, false));
        let request = &alpha.request;
        assert_eq!((request.block_size, request.alignment), (Some(8192), 512));
        let settings: Vec<_> = request.settings.iter().collect();
        assert_eq!(settings, [("export", "nbd,fuse"), ("ordered", "on"), ("dirty_high", "60")]);
        assert_eq!(alpha.line_of("dirty_high"), 15);
        assert_eq!(parse(""), Ok(Vec::new()));
        assert_eq!(parse("[volumes]\n"), Ok(Vec::new()));
    }

    #[test]
    fn a_profile_decides_what_volumes_do_not_share() {
        let text = "[volumes.v]\ncache = '/c'\norigin = '/o'\nprofile = 'bcache'\nmode = 'wt'\n";
        let decided = parse(text).expect("good").remove(0).decided();
        let count = |name| decided.iter().filter(|setting| setting.name == name).count();
        assert_eq!((count("mode"), count("policy"), count("dirty_high")), (1, 0, 1));
        let own = format!("{text}policy = 'lru'\n");
        let decided = parse(&own).expect("good").remove(0).decided();
        assert!(decided.iter().any(|setting| setting.name == "policy"));
    }

    #[test]
    fn errors_name_the_line_and_the_key() {
        let volume = "[volumes.v]\norigin = '/o'\n";
        for (text, line, key) in [
            ("volume = 1\n".to_owned(), 1, "volume:"),
            ("\n[daemon]\n".to_owned(), 2, "daemon:"),
            ("volumes = 3\n".to_owned(), 1, "volumes:"),
            ("[[volumes]]\n".to_owned(), 1, "volumes:"),
            ("[volumes]\nv = 1\n".to_owned(), 2, "v:"),
            ("[volumes.'a/b']\norigin = '/o'\n".to_owned(), 1, "'a/b' cannot name"),
            ("\n\n[volumes.v]\n".to_owned(), 3, "no origin"),
            (format!("{volume}orgin = '/p'\n"), 3, "orgin:"),
            (format!("{volume}origin = '/p'\n"), 3, "origin:"),
            (format!("{volume}{volume}"), 3, "v"),
            (format!("{volume}force = true\n"), 3, "force:"),
            (format!("{volume}dirty_high = 101\n"), 3, "dirty_high:"),
            (format!("{volume}dirty_high = -1\n"), 3, "dirty_high:"),
            (format!("{volume}dirty_high = 5.5\n"), 3, "dirty_high:"),
            (format!("{volume}ram = '1e30'\n"), 3, "ram:"),
            (format!("{volume}ram = '10 GB'\n"), 3, "ram:"),
            (format!("{volume}ram = ''\n"), 3, "ram:"),
            (format!("{volume}ram = 18446744073709551616\n"), 3, "ram:"),
            (format!("{volume}mode = ['wb']\n"), 3, "mode:"),
            (format!("{volume}block_size = 3\n"), 3, "block_size:"),
            (format!("{volume}block_size = 0x1000\n"), 3, "block_size:"),
            (format!("{volume}alignment = 1\n"), 3, "alignment:"),
            (format!("{volume}profile = 'nope'\n"), 3, "profile:"),
            (format!("{volume}serve = 'yes'\n"), 3, "serve:"),
            (format!("{volume}cache = \n"), 3, ""),
            (format!("{volume}cache = \"/x\n"), 3, ""),
            (format!("{volume}merge_bytes = 1\n"), 3, "merge_bytes:"),
            (format!("{volume}policy = 'auto'\n"), 3, "s3-fifo"),
        ] {
            let error = parse(&text).expect_err(&text);
            assert_eq!(error.line, line, "{text:?}: {error}");
            assert!(error.message.contains(key), "{text:?}: {error}");
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
}
