"""A perceptron of scikit-learn, trained asynchronously by an unchanged client."""
