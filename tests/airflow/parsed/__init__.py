"""What the tests of parsing run within an Airflow: a DAG file of every kind of member, and who reads it."""
