//! What holds of every path in the description of the API: how errors look, and who may ask.

use utoipa::Modify;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder};

/// Adds it.
pub struct Everywhere;

impl Modify for Everywhere {
    fn modify(&self, api: &mut OpenApi) {
        for item in api.paths.paths.values_mut() {
            let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete];
            for operation in operations.into_iter().flatten() {
                let responses = &mut operation.responses.responses;
                for (status, response) in responses.iter_mut() {
                    if let RefOr::T(response) = response
                        && response.description.is_empty()
                    {
                        usual(status).clone_into(&mut response.description);
                    }
                }
                for (status, what) in [
                    ("400", "the request cannot be right, whatever the state of the machine"),
                    ("401", "over the network: nobody is known by what the request shows"),
                    ("403", "over the network: the token may only look; or the operating system does not permit it"),
                    ("default", "any other error; docs/errors.md lists the kinds with their statuses"),
                ] {
                    responses.entry(status.to_owned()).or_insert_with(|| RefOr::T(error(what)));
                }
            }
        }
        let token = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("over the network: a token of the daemon's token files; the socket asks for none"))
            .build();
        let certificate = SecurityScheme::MutualTls {
            description: Some("over the network: a certificate of the daemon's authority of clients".to_owned()),
            deprecated: None,
            extensions: None,
        };
        let components = api.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(token));
        components.add_security_scheme("certificate", certificate);
        let none: [String; 0] = [];
        api.security =
            Some(vec![SecurityRequirement::new("token", none.clone()), SecurityRequirement::new("certificate", none)]);
    }
}

/// What a status says where nothing else is said of it.
fn usual(status: &str) -> &'static str {
    match status {
        "200" => "done; what was asked for, or what it is now",
        "202" => "it has begun and goes on as a job",
        "404" => "there is no such thing",
        "409" => "refused as things are now",
        _ => "an error",
    }
}

fn error(what: &str) -> Response {
    let body = ContentBuilder::new().schema(Some(Ref::from_schema_name("ErrorBody"))).build();
    ResponseBuilder::new().description(what).content("application/json", body).build()
}
