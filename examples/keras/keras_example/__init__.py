"""A perceptron of Keras, trained asynchronously by an unchanged client."""
