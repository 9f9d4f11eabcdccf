//! Access to TCP addresses: browsers that show the page, and programs, but not the pages of other
//! sites.

use std::net::{IpAddr, SocketAddr};

use forebay_admin::{ApiError, ErrorKind};
use hyper::header::{HOST, HeaderMap, HeaderName, ORIGIN};

use crate::http::{check_origin, single};

/// The header in which a browser states the relation of the requesting page's site.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Refuses requests of pages of other sites. `option` names the option with the address that
/// listens, `bound`.
///
/// # Errors
/// [`ErrorKind::Forbidden`] naming the foreign header; [`ErrorKind::Invalid`] if a header cannot be
/// parsed.
pub(crate) fn check(option: &str, headers: &HeaderMap, bound: SocketAddr) -> Result<(), ApiError> {
    let host = single(headers, HOST)?.map(str::trim);
    if !host.is_some_and(|host| is_own(host, bound.ip())) {
        // A site can make its own name resolve to this machine, but cannot hide the name.
        let message =
            format!("the Host header is foreign; use the address of {option}, or 'localhost'");
        return Err(ApiError::new(ErrorKind::Forbidden, message));
    }
    check_site(headers)?;
    check_origin(single(headers, ORIGIN)?, host)
}

/// Refuses requests that a browser marks as those of pages of other sites, whatever name the client
/// uses.
///
/// # Errors
/// See [`check`].
pub(crate) fn check_site(headers: &HeaderMap) -> Result<(), ApiError> {
    match single(headers, SEC_FETCH_SITE)? {
        None | Some("same-origin" | "none") => Ok(()),
        Some(_) => {
            let message = "the request comes from a page of another site; type the address";
            Err(ApiError::new(ErrorKind::Forbidden, message))
        }
    }
}

/// Returns whether a host is this machine. The port may differ, for example behind a tunnel.
fn is_own(host: &str, bound: IpAddr) -> bool {
    let address = match host.parse::<SocketAddr>() {
        Ok(address) => Some(address.ip()),
        Err(_) => host.trim_matches(['[', ']']).parse().ok(),
    };
    match address {
        // No site has an address as its name.
        Some(address) => address.is_loopback() || address == bound || bound.is_unspecified(),
        None => {
            let (name, port) = host.split_once(':').unwrap_or((host, "80"));
            name.eq_ignore_ascii_case("localhost") && port.parse::<u16>().is_ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(bound: &str, headers: &[(HeaderName, &str)]) -> Result<(), ErrorKind> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, value.parse().expect("a valid value"));
        }
        check("--web", &map, bound.parse().expect("an address")).map_err(|error| error.kind)
    }

    #[test]
    fn only_names_of_this_machine_are_served() {
        for host in ["localhost", "LOCALHOST:9", "127.0.0.1:9634", "127.0.0.1", "[::1]", "[::1]:80"]
        {
            assert_eq!(judged("127.0.0.1:9634", &[(HOST, host)]), Ok(()), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:9634",
            "localhost.evil",
            "localhost:evil",
            "127.0.0.1.evil",
            "192.0.2.1",
            "192.0.2.1:9634",
            "forebay",
            "[::2]:9634",
            "127.0.0.1@evil",
        ] {
            let refused = Err(ErrorKind::Forbidden);
            assert_eq!(judged("127.0.0.1:9634", &[(HOST, host)]), refused, "{host}");
        }
        assert_eq!(judged("127.0.0.1:9634", &[]), Err(ErrorKind::Forbidden));
        let twice = [(HOST, "localhost"), (HOST, "evil.example")];
        assert_eq!(judged("127.0.0.1:9634", &twice), Err(ErrorKind::Invalid));
    }

    #[test]
    fn an_address_of_the_network_is_served_by_itself_and_no_name_is() {
        assert_eq!(judged("192.0.2.1:80", &[(HOST, "192.0.2.1")]), Ok(()));
        assert_eq!(judged("192.0.2.1:80", &[(HOST, "192.0.2.2")]), Err(ErrorKind::Forbidden));
        assert_eq!(judged("0.0.0.0:80", &[(HOST, "192.0.2.2:80")]), Ok(()));
        assert_eq!(judged("0.0.0.0:80", &[(HOST, "evil.example:80")]), Err(ErrorKind::Forbidden));
        assert_eq!(judged("[::]:80", &[(HOST, "[2001:db8::1]:80")]), Ok(()));
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let with =
            |name, value| judged("127.0.0.1:9634", &[(HOST, "127.0.0.1:9634"), (name, value)]);
        for site in ["cross-site", "same-site", "", "None", "none, none"] {
            assert_eq!(with(SEC_FETCH_SITE, site), Err(ErrorKind::Forbidden), "{site}");
        }
        for site in ["same-origin", "none"] {
            assert_eq!(with(SEC_FETCH_SITE, site), Ok(()), "{site}");
        }
        for origin in ["null", "http://evil.example", "http://localhost:9634", "http://127.0.0.1"] {
            assert_eq!(with(ORIGIN, origin), Err(ErrorKind::Forbidden), "{origin}");
        }
        assert_eq!(with(ORIGIN, "http://127.0.0.1:9634"), Ok(()));
    }
}
