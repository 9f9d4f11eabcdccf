//! The selection of events that a client requests.

use std::time::Duration;

use forebay_admin::{ApiError, Event, EventId, EventKind, VolumeName};
use forebay_settings::duration::parse_duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A selection of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Query {
    /// Only about this volume.
    pub(crate) volume: Option<VolumeName>,
    /// Only events of these kinds; empty for all kinds.
    pub(crate) kinds: Vec<EventKind>,
    /// Only events since this time.
    pub(crate) since: Option<OffsetDateTime>,
    /// Only events with larger numbers.
    pub(crate) after: EventId,
    /// Most events that are returned; the newest ones are.
    pub(crate) limit: usize,
}

impl Default for Query {
    fn default() -> Self {
        let (volume, kinds, since) = (None, Vec::new(), None);
        Query { volume, kinds, since, after: EventId(0), limit: usize::MAX }
    }
}

impl Query {
    /// Parses the query of a request, like
    /// `volume=v&kind=degraded,recovered&since=1h&after=7&limit=100`, each part of which is
    /// optional.
    ///
    /// # Errors
    /// The part that cannot be understood.
    pub(crate) fn parse(text: &str) -> Result<Self, ApiError> {
        let mut query = Query::default();
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            let number = || {
                let number = value.parse::<u64>();
                number.map_err(|_| ApiError::invalid(&name, "write a whole number"))
            };
            match &*name {
                "volume" => query.volume = Some(value.parse()?),
                "kind" => {
                    for kind in value.split(',') {
                        let kind = kind.parse::<EventKind>();
                        query.kinds.push(kind.map_err(|error| ApiError::invalid("kind", error))?);
                    }
                }
                "since" => query.since = Some(since(&value)?),
                "after" => query.after = EventId(number()?),
                "limit" => query.limit = usize::try_from(number()?).unwrap_or(usize::MAX),
                _ => {
                    let known = "the parts are volume, kind, since, after and limit";
                    return Err(ApiError::invalid("query", known));
                }
            }
        }
        Ok(query)
    }

    /// Returns whether an event matches, apart from its number.
    pub(super) fn wants(&self, event: &Event) -> bool {
        self.volume.as_ref().is_none_or(|volume| event.volume.as_ref() == Some(volume))
            && (self.kinds.is_empty() || self.kinds.contains(&event.kind))
            && self.since.is_none_or(|since| event.time >= since)
    }
}

/// Parses a time: RFC 3339, or how long ago it was.
pub fn since(text: &str) -> Result<OffsetDateTime, ApiError> {
    let ago = |ago: Duration| OffsetDateTime::now_utc().checked_sub(ago.try_into().ok()?);
    let parsed = match parse_duration(text) {
        Ok(duration) => ago(duration),
        Err(_) => OffsetDateTime::parse(text, &Rfc3339).ok(),
    };
    parsed.ok_or_else(|| {
        let how = "write how long ago, like 30m, 2h or 1d, or a time like 2026-01-31T15:04:05Z";
        ApiError::invalid("since", how)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_understood_and_others_are_refused_by_name() {
        let query = Query::parse(
            "volume=v&kind=degraded,recovered&since=2026-01-02T03%3A04%3A05%2B01:00&after=7&limit=2",
        );
        let query = query.expect("good");
        assert_eq!(query.volume, Some("v".parse().expect("valid")));
        assert_eq!(query.kinds, [EventKind::Degraded, EventKind::Recovered]);
        assert_eq!((query.after, query.limit), (EventId(7), 2));
        let since = query.since.expect("a time");
        assert_eq!(since.unix_timestamp(), 1_767_319_445);
        assert_eq!(Query::parse(""), Ok(Query::default()));
        for (text, field) in [
            ("volume=../x", "name"),
            ("kind=explodes", "kind"),
            ("since=yesterday", "since"),
            ("since=99999999999999999d", "since"),
            ("after=-1", "after"),
            ("limit=x", "limit"),
            ("colour=red", "query"),
        ] {
            let error = Query::parse(text).expect_err(text);
            assert_eq!(error.field.as_deref(), Some(field), "{error}");
        }
    }
}
