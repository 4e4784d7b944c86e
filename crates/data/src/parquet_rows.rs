//! Rows of a Parquet file, as the JSON objects that the same samples have in JSON Lines.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Once};

use bytes::Bytes;
use parquet::basic::{ConvertedType, LogicalType, Type as Physical};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use parquet::schema::types::Type;
use serde_json::{Map, Value};

use crate::error::{ColumnError, DataError};
use crate::strict_json;

/// What a Parquet file begins with.
pub(crate) const MAGIC: &[u8] = b"PAR1";

/// The columns that are read. Lists and structs may be stored as such, or as the text of their JSON.
const COLUMNS: [(&str, Needed); 6] = [
    ("messages", Needed::Nested),
    ("tools", Needed::Nested),
    ("prompt", Needed::Text),
    ("completion", Needed::Text),
    ("text", Needed::Text),
    ("id", Needed::Scalar),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Needed {
    Text,
    Nested,
    Scalar,
}

impl Needed {
    fn name(self) -> &'static str {
        match self {
            Needed::Text => "strings",
            Needed::Nested => "a list of structs, or strings of JSON",
            Needed::Scalar => "strings or integers",
        }
    }
}

/// Reads every row of a file's bytes, the columns of a sample only. Nulls are left out: a table has every key in every
/// row, and an absent key is null there. A file may have `limit` rows.
pub(crate) fn rows(
    path: &Path,
    bytes: &Bytes,
    limit: usize,
) -> Result<Vec<Map<String, Value>>, DataError> {
    // The library asserts some of what a damaged file can break.
    let read = quietly(|| catch_unwind(AssertUnwindSafe(|| read(bytes, limit))))
        .unwrap_or_else(|_| Err(malformed("a page of it is damaged")));
    read.map_err(|source| DataError::Parquet { path: path.to_owned(), source })
}

thread_local! {
    /// Whether a panic of this thread is about to become an error, and nothing is to be printed of it.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body` without the message of a panic in it: the program's user is told by the error that comes of it.
fn quietly<T>(body: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                before(info);
            }
        }));
    });
    QUIET.set(true);
    let result = body();
    QUIET.set(false);
    result
}

fn malformed(reason: impl ToString) -> ColumnError {
    ColumnError::Malformed { reason: reason.to_string() }
}

fn read(bytes: &Bytes, limit: usize) -> Result<Vec<Map<String, Value>>, ColumnError> {
    let reader = SerializedFileReader::new(bytes.clone()).map_err(malformed)?;
    let metadata = reader.metadata().file_metadata();
    let rows = metadata.num_rows();
    if rows > limit as i64 {
        return Err(ColumnError::TooManyRows { rows, limit });
    }
    let schema = metadata.schema();
    let columns = columns(schema)?;
    let projection = Type::group_type_builder(schema.name()).with_fields(columns).build();
    let projection = projection.map_err(malformed)?;
    let rows = reader.get_row_iter(Some(projection)).map_err(malformed)?;
    let mut objects = Vec::new();
    for (index, row) in rows.enumerate() {
        objects.push(object(&row.map_err(malformed)?, index + 1)?);
    }
    Ok(objects)
}

/// The columns of a sample among those of the file, each of a type that can be read.
fn columns(schema: &Type) -> Result<Vec<Arc<Type>>, ColumnError> {
    let fields = schema.get_fields();
    let has = |name: &str| fields.iter().any(|field| field.name() == name);
    if !(has("messages") || has("text") || (has("prompt") && has("completion"))) {
        let columns: Vec<&str> = fields.iter().map(|field| field.name()).collect();
        return Err(ColumnError::Missing { columns: columns.join(", ") });
    }
    let needed = |name: &str| COLUMNS.iter().find(|(column, _)| *column == name).map(|c| c.1);
    let wanted = fields.iter().filter_map(|field| Some((field, needed(field.name())?)));
    wanted
        .map(|(field, needed)| match fits(field, needed) {
            true => Ok(Arc::clone(field)),
            false => Err(ColumnError::Type {
                column: field.name().to_owned(),
                needed: needed.name(),
                found: describe(field),
            }),
        })
        .collect()
}

fn fits(field: &Type, needed: Needed) -> bool {
    match needed {
        Needed::Text => is_text(field),
        Needed::Nested => is_text(field) || (field.is_group() && leaves_are_json(field)),
        Needed::Scalar => is_text(field) || is_integer(field),
    }
}

fn is_text(field: &Type) -> bool {
    let info = field.get_basic_info();
    let annotated = matches!(
        info.logical_type_ref(),
        Some(LogicalType::String | LogicalType::Json | LogicalType::Enum)
    ) || matches!(
        info.converted_type(),
        ConvertedType::UTF8 | ConvertedType::JSON | ConvertedType::ENUM
    );
    field.is_primitive() && field.get_physical_type() == Physical::BYTE_ARRAY && annotated
}

fn is_integer(field: &Type) -> bool {
    use ConvertedType as C;
    let plain = matches!(
        field.get_basic_info().converted_type(),
        C::NONE
            | C::INT_8
            | C::INT_16
            | C::INT_32
            | C::INT_64
            | C::UINT_8
            | C::UINT_16
            | C::UINT_32
            | C::UINT_64
    );
    field.is_primitive()
        && plain
        && matches!(field.get_physical_type(), Physical::INT32 | Physical::INT64)
}

/// Whether everything below a column is what JSON has too; the library cannot print some other types.
fn leaves_are_json(field: &Type) -> bool {
    if field.is_group() {
        return field.get_fields().iter().all(|below| leaves_are_json(below));
    }
    let number = matches!(field.get_physical_type(), Physical::FLOAT | Physical::DOUBLE);
    is_text(field) || is_integer(field) || number || field.get_physical_type() == Physical::BOOLEAN
}

fn describe(field: &Type) -> String {
    if field.is_group() {
        return "a list or struct".to_owned();
    }
    match field.get_basic_info().converted_type() {
        ConvertedType::NONE => field.get_physical_type().to_string(),
        converted => format!("{} ({converted})", field.get_physical_type()),
    }
}

/// A row as an object. Nested columns that are stored as text are parsed.
fn object(row: &Row, number: usize) -> Result<Map<String, Value>, ColumnError> {
    let mut object = Map::new();
    for (name, field) in row.get_column_iter() {
        let nested =
            COLUMNS.iter().any(|(column, needed)| column == name && *needed == Needed::Nested);
        let value = match field {
            Field::Null => continue,
            Field::Str(text) if nested => strict_json::value(text).map_err(|error| {
                ColumnError::Json { column: name.clone(), row: number, reason: error.to_string() }
            })?,
            other => json(other),
        };
        object.insert(name.clone(), value);
    }
    Ok(object)
}

fn json(field: &Field) -> Value {
    match field {
        Field::Bool(value) => Value::Bool(*value),
        Field::Byte(n) => (*n).into(),
        Field::Short(n) => (*n).into(),
        Field::Int(n) => (*n).into(),
        Field::Long(n) => (*n).into(),
        Field::UByte(n) => (*n).into(),
        Field::UShort(n) => (*n).into(),
        Field::UInt(n) => (*n).into(),
        Field::ULong(n) => (*n).into(),
        Field::Float(n) => f64::from(*n).into(),
        Field::Double(n) => (*n).into(),
        Field::Str(text) => Value::String(text.clone()),
        Field::Group(row) => {
            let present = row.get_column_iter().filter(|(_, field)| !matches!(field, Field::Null));
            Value::Object(present.map(|(name, field)| (name.clone(), json(field))).collect())
        }
        Field::ListInternal(list) => Value::Array(list.elements().iter().map(json).collect()),
        Field::MapInternal(map) => {
            let entries = map.entries().iter();
            // The library prints a string in quotes.
            let name = |key: &Field| match json(key) {
                Value::String(text) => text,
                other => other.to_string(),
            };
            Value::Object(entries.map(|(key, value)| (name(key), json(value))).collect())
        }
        // `leaves_are_json` lets no other type through.
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::data_type::{ByteArrayType, Int32Type};
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    use serde_json::json;

    #[test]
    fn a_table_may_have_as_many_rows_as_the_limit_and_no_more() {
        let golden =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/parquet/pairs.parquet");
        let bytes = Bytes::from(std::fs::read(golden).unwrap());
        let count = read(&bytes, usize::MAX >> 1).unwrap().len();
        assert_eq!(read(&bytes, count).unwrap().len(), count);
        let error = read(&bytes, count - 1).unwrap_err();
        assert!(matches!(error, ColumnError::TooManyRows { .. }), "{error}");
    }

    #[test]
    fn numbers_of_every_width_are_numbers() {
        for (field, number) in [
            (Field::Byte(-1), -1i64),
            (Field::Short(-300), -300),
            (Field::Int(-70_000), -70_000),
            (Field::Long(-5_000_000_000), -5_000_000_000),
            (Field::UByte(200), 200),
            (Field::UShort(60_000), 60_000),
            (Field::UInt(4_000_000_000), 4_000_000_000),
            (Field::ULong(5_000_000_000), 5_000_000_000),
        ] {
            assert_eq!(json(&field), Value::from(number));
        }
        for field in [Field::Float(0.5), Field::Double(0.5)] {
            assert_eq!(json(&field), Value::from(0.5));
        }
    }

    #[test]
    fn a_map_is_an_object() {
        let schema = "message m { required binary text (UTF8); required group tools (MAP) { repeated group key_value \
                      { required binary key (UTF8); required int32 value; } } }";
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let (each, further) = (Some(&[1, 1][..]), Some(&[0, 1][..]));
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&["t".into()], None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let keys = ["a".into(), "b".into()];
        column.typed::<ByteArrayType>().write_batch(&keys, each, further).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int32Type>().write_batch(&[1, 2], each, further).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        let rows = read(&Bytes::from(writer.into_inner().unwrap()), 1).unwrap();
        assert_eq!(Value::Object(rows[0].clone()), json!({"text": "t", "tools": {"a": 1, "b": 2}}));
    }

    #[test]
    fn text_is_known_by_either_annotation() {
        let column = |converted, logical| {
            let builder = Type::primitive_type_builder("a", Physical::BYTE_ARRAY);
            builder.with_converted_type(converted).with_logical_type(logical).build().unwrap()
        };
        assert!(is_text(&column(ConvertedType::UTF8, None)));
        assert!(is_text(&column(ConvertedType::NONE, Some(LogicalType::String))));
        assert!(!is_text(&column(ConvertedType::NONE, None)));
    }
}
